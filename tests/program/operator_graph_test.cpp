// SPDX-License-Identifier: BSD-3-Clause
// Plans that are found in graphs that the test program describes itself.
#include "tests/error_of.h"

#include <dtensor/dtensor.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

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

} // namespace TEST_SOURCE
} // namespace dtensor
