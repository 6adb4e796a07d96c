// SPDX-License-Identifier: BSD-3-Clause
// Plans that are found in graphs that the test program describes itself.
#include "made_program.h"
#include "tests/error_of.h"
#include "tests/weights/files.h"

#include <dtensor/dtensor.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>

namespace dtensor {
namespace TEST_SOURCE {

using test_text::error_of;
using Value = OperatorGraph::Value;

c10::OperatorHandle op(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

struct NetImpl : torch::nn::Module {
  torch::nn::Linear up = register_module("up", torch::nn::Linear(8, 24));
  torch::nn::Linear gate = register_module("gate", torch::nn::Linear(8, 24));
  torch::nn::Linear down = register_module("down", torch::nn::Linear(24, 8));
};
TORCH_MODULE(Net);

// Adds a call of linear with the module's parameters.
Value add_linear(OperatorGraph& graph, Value x, torch::nn::Linear& linear) {
  const auto weight = graph.add_input(linear->weight);
  const auto bias = graph.add_input(linear->bias);
  return graph.add_call(op("aten::linear"), {x, weight, bias});
}

Value add_rows(OperatorGraph& graph) {
  return graph.add_input(torch::empty({4, 8}, torch::kMeta));
}

std::string plan_in(const OperatorGraph& graph, const Net& net) {
  return to_string(find_tp_plan(graph, *net));
}

constexpr const char* kNoStyles = "# no styles: no weight is sharded\n";

TEST(OperatorGraphs, ShardAPair) {
  Net net;
  OperatorGraph graph;
  const auto x = add_rows(graph);
  const auto h =
      graph.add_call(op("aten::relu"), {add_linear(graph, x, net->up)});
  graph.outputs = {add_linear(graph, h, net->down)};
  const std::string plan =
      "up    colwise\n"
      "down  rowwise\n";
  EXPECT_EQ(plan_in(graph, net), plan);
  // The plan applies to the C++ model.
  for (const int64_t ranks : {2, 3}) {
    run_ranks(ranks, [&] {
      torch::manual_seed(1);
      Net here;
      const auto input = torch::randn({4, 8});
      const auto run = [&] {
        return here->down(torch::relu(here->up(input))).detach();
      };
      const auto truth = run();
      parallelize_module(
          *here,
          init_device_mesh(torch::kCPU, {ranks}, {"tp"}),
          make_plan(parse_plan(plan)));
      EXPECT_TRUE(torch::allclose(run(), truth, 1e-4, 1e-5));
    });
  }
}

// Lists of tensors as an argument and as a result, and unused results.
TEST(OperatorGraphs, ReadLists) {
  Net net;
  OperatorGraph graph;
  const auto x = add_rows(graph);
  const auto up = add_linear(graph, x, net->up);
  const auto gate = add_linear(graph, x, net->gate);
  const auto both = graph.add_call(
      op("aten::stack"), {std::vector<OperatorGraph::Item>{up, gate}, 0});
  const auto first = graph.new_value();
  const auto second = graph.new_value();
  graph.calls.push_back(
      {op("aten::unbind", "int"), {both, 0}, {{first, second}}, ""});
  const auto h = graph.add_call(op("aten::mul", "Tensor"), {first, second});
  graph.outputs = {add_linear(graph, h, net->down)};
  EXPECT_EQ(
      plan_in(graph, net),
      "up    colwise\n"
      "gate  colwise\n"
      "down  rowwise\n");
}

// A list may have values and constants.
TEST(OperatorGraphs, ReadListsWithGaps) {
  Net net;
  OperatorGraph graph;
  const auto x = add_rows(graph);
  const auto rows = graph.add_input(
      torch::empty({2}, at::TensorOptions(at::kLong).device(at::kMeta)));
  const auto h = graph.add_call(
      op("aten::index", "Tensor"),
      {add_linear(graph, x, net->up),
       std::vector<OperatorGraph::Item>{rows, c10::IValue()}});
  graph.outputs = {add_linear(graph, h, net->down)};
  EXPECT_EQ(
      plan_in(graph, net),
      "up    colwise\n"
      "down  rowwise\n");
}

TEST(OperatorGraphs, ReplicateWeightsOfUndescribedCode) {
  Net net;
  OperatorGraph graph;
  const auto x = add_rows(graph);
  const auto h =
      graph.add_call(op("aten::relu"), {add_linear(graph, x, net->up)});
  graph.calls.push_back(
      {std::nullopt, {graph.inputs[1].value}, {}, ""}); // the weight of up
  graph.outputs = {add_linear(graph, h, net->down)};
  EXPECT_EQ(plan_in(graph, net), kNoStyles);
}

TEST(OperatorGraphs, RefuseUnsoundGraphs) {
  Net net;
  const auto refusal = [&](const std::function<void(OperatorGraph&)>& change) {
    OperatorGraph graph;
    add_rows(graph);
    change(graph);
    return error_of<c10::ValueError>([&] { find_tp_plan(graph, *net); });
  };
  EXPECT_EQ(
      refusal(
          [](auto& graph) { graph.add_call(op("aten::relu"), {Value{7}}); }),
      "[find_tp_plan] call 0 (aten::relu) of the graph uses value 7, which no "
      "input and no earlier call defines. Define it first.");
  EXPECT_EQ(
      refusal([](auto& graph) { graph.outputs = {Value{9}}; }),
      "[find_tp_plan] the list of outputs of the graph uses value 9, which no "
      "input and no earlier call defines. Define it first.");
  EXPECT_EQ(
      refusal([](auto& graph) {
        graph.calls.push_back({op("aten::relu"), {Value{0}}, {{Value{0}}}, ""});
      }),
      "[find_tp_plan] value 0 of the graph is defined twice, or is not one of "
      "its values (there are 1). Make each with new_value().");
  EXPECT_EQ(
      refusal(
          [](auto& graph) { graph.add_call(op("aten::linear"), {Value{0}}); }),
      "[find_tp_plan] call 0 (aten::linear) of the graph has 1 argument and 1 "
      "result, but the operator has 3 and 1. Pass all, including defaults.");
  EXPECT_EQ(
      refusal([](auto& graph) {
        graph.add_call(
            op("aten::relu"), {std::vector<OperatorGraph::Item>{Value{0}}});
      }),
      "[find_tp_plan] call 0 (aten::relu) of the graph has a list of values "
      "for an argument of type Tensor. Pass a constant.");
}

// --- programs ----------------------------------------------------------------

using test_program::call;
using test_program::integer;
using test_program::number;
using test_program::tensor;

// Inserts `more` behind `place`.
void insert_at(
    std::string& text,
    const std::string& place,
    const std::string& more) {
  text.insert(text.find(place) + place.size(), more);
}

std::string about_zeros(const std::vector<int64_t>& sizes) {
  return c10::str(
      R"({"dtype": 7, "sizes": [{"as_int": )",
      sizes[0],
      R"(}, {"as_int": )",
      sizes[1],
      R"(}], "strides": [{"as_int": )",
      sizes[1],
      R"(}, {"as_int": 1}], "storage_offset": {"as_int": 0}, )",
      R"("requires_grad": true, "device": {"type": "cpu"}})");
}

constexpr const char* kUp = "up.weight";
constexpr const char* kDown = "down.weight";
constexpr const char* kOther = "other.weight";
constexpr const char* kKept = "kept";

// A program with the parameters kUp, f32[8, 3], kDown, f32[4, 8], and kOther,
// f32[5, 8], and the buffer kKept, f32[2, 8]. All are zero. Its inputs are x,
// f32[2, 3], and the number n. The results are y and `outputs`.
class MadeProgram {
 public:
  MadeProgram(
      const std::vector<std::string>& calls,
      const std::string& outputs = "")
      : text_(test_program::graph(calls)) {
    add("parameter", kUp, {8, 3});
    add("parameter", kDown, {4, 8});
    add("parameter", kOther, {5, 8});
    add("buffer", kKept, {2, 8});
    insert_at(text_, R"("output_specs": [)", outputs);
  }

  Program load() const {
    return load_program(test_program::write_program(
        path(),
        text_,
        {{"data/weights/model_weights_config.json",
          R"({"config": {)" + table_ + "}}"},
         {"data/weights/weight_0", std::string(40 * sizeof(float), '\0')}}));
  }

  std::string path() const {
    return folder_ / "m.pt2";
  }

 private:
  void add(
      const std::string& kind,
      const std::string& name,
      const std::vector<int64_t>& sizes) {
    const auto about = about_zeros(sizes);
    insert_at(
        text_,
        R"("input_specs": [)",
        R"({")" + kind + R"(": {")" + kind + R"(_name": ")" + name +
            R"(", "arg": {"name": ")" + name + R"("}}}, )");
    insert_at(
        text_, R"("tensor_values": {)", '"' + name + R"(": )" + about + ", ");
    table_ += (table_.empty() ? "\"" : ", \"") + name +
        R"(": {"path_name": "weight_0", "use_pickle": false, )"
        R"("tensor_meta": )" +
        about + "}";
  }

  test_weights::Folder folder_;
  std::string text_;
  std::string table_;
};

std::string linear(
    const std::string& from,
    const std::string& weight,
    const std::string& to) {
  return call(
      "torch.ops.aten.linear.default",
      {{"input", tensor(from)}, {"weight", tensor(weight)}},
      {tensor(to)});
}

std::string relu_of(const std::string& from, const std::string& to) {
  return call(
      "torch.ops.aten.relu.default", {{"self", tensor(from)}}, {tensor(to)});
}

std::string times_n(const std::string& from, const std::string& to) {
  return call(
      "torch.ops.aten.mul.Scalar",
      {{"self", tensor(from)}, {"other", number("n")}},
      {tensor(to)});
}

std::string plan_of(
    const std::vector<std::string>& calls,
    const std::string& outputs = "") {
  return to_string(find_tp_plan(MadeProgram(calls, outputs).load()));
}

constexpr const char* kPair =
    "up    colwise\n"
    "down  rowwise\n";

TEST(MadePrograms, ShardAPair) {
  EXPECT_EQ(
      plan_of(
          {linear("x", kUp, "h"), relu_of("h", "r"), linear("r", kDown, "y")}),
      kPair);
}

// The layouts of values that depend on a number of the caller are unknown.
TEST(MadePrograms, ReplicateValuesOfUnknownNumbers) {
  EXPECT_EQ(
      plan_of(
          {linear("x", kUp, "h"), times_n("h", "r"), linear("r", kDown, "y")}),
      kNoStyles);
  EXPECT_EQ(
      plan_of(
          {times_n("x", "z"),
           linear("z", kUp, "h"),
           relu_of("h", "r"),
           linear("r", kDown, "y")}),
      kNoStyles);
}

// Results and written buffers keep their global shapes.
TEST(MadePrograms, ReplicateResultsAndBuffers) {
  const std::vector<std::string> calls = {
      linear("x", kUp, "h"), relu_of("h", "r"), linear("r", kDown, "y")};
  for (
      const auto* output :
      {R"({"user_output": {"arg": {"as_tensor": {"name": "h"}}}}, )",
       R"({"buffer_mutation": {"arg": {"name": "h"}, "buffer_name": "kept"}}, )"}) {
    EXPECT_EQ(plan_of(calls, output), kNoStyles) << output;
  }
}

// A size of a sharded value does not depend on its layout.
TEST(MadePrograms, ReadSizesOfShardedValues) {
  EXPECT_EQ(
      plan_of(
          {linear("x", kUp, "h"),
           linear("h", kDown, "y"),
           call(
               "torch.ops.aten.sym_size.int",
               {{"self", tensor("h")}, {"dim", integer(1)}},
               {number("m")}),
           call(
               "torch.ops.aten.full.default",
               {{"size",
                 R"({"as_sym_ints": [{"as_int": 2}, {"as_name": "m"}]})"},
                {"fill_value", integer(1)},
                {"dtype", R"({"as_scalar_type": 7})"}},
               {tensor("z")}),
           linear("z", kOther, "o")},
          R"({"user_output": {"arg": {"as_tensor": {"name": "o"}}}}, )"),
      "up     colwise\n"
      "down   rowwise\n"
      "other  colwise\n");
}

TEST(MadePrograms, ArePrinted) {
  const MadeProgram made({linear("x", kUp, "h"), linear("h", kDown, "y")});
  std::ostringstream text;
  text << made.load();
  EXPECT_EQ(
      text.str(),
      made.path() +
          ": 2 operators\n"
          "input x\n"
          "input n\n"
          "output 0\n"
          "parameter other.weight f32[5, 8]\n"
          "parameter down.weight f32[4, 8]\n"
          "parameter up.weight f32[8, 3]\n"
          "buffer kept f32[2, 8]");
}

} // namespace TEST_SOURCE
} // namespace dtensor
