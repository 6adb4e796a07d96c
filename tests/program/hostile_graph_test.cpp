// SPDX-License-Identifier: BSD-3-Clause
// Tests graphs written by an attacker: an error that names the file and the
// place, without side effects.
#include "exported.h"
#include "made_program.h"
#include "tests/error_of.h"
#include "tests/long_texts.h"
#include "tests/weights/files.h"

#include <dtensor/dtensor.h>
#include <dtensor/program/read_graph_impl.h>
#include <dtensor/program/sample_inputs_impl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <fstream>
#include <iterator>
#include <set>
#include <string_view>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test_program;
using test_text::error_of;
using test_weights::Folder;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string
replaced(const std::string& text, std::string_view from, std::string_view to) {
  std::string result;
  size_t done = 0;
  for (auto at = text.find(from); at != text.npos; at = text.find(from, done)) {
    result.append(text, done, at - done).append(to);
    done = at + from.size();
  }
  return result.append(text, done);
}

std::string repeated(const std::string& text, size_t count) {
  std::string all;
  all.reserve(text.size() * count);
  for (size_t i = 0; i < count; ++i) {
    all += text;
  }
  return all;
}

std::string none_is_empty(const std::string& error) {
  return error == "nothing was thrown" ? "" : error;
}

// Returns the error of loading and calling the graph, with FILE for the path,
// or an empty text.
std::string error_of_graph(
    const std::string& text,
    const LoadProgramOptions& options = {},
    int64_t n = 3) {
  const Folder folder;
  const auto path = write_program(folder / "m.pt2", text);
  const auto error = none_is_empty(error_of([&] {
    auto program = load_program(path, options);
    program.run({torch::ones({2, 3}), n});
  }));
  EXPECT_THAT(error, AnyOf("", HasSubstr(path)));
  EXPECT_THAT(error, Not(HasSubstr("INTERNAL ASSERT")));
  EXPECT_THAT(error, Not(HasSubstr("report a bug")));
  return replaced(error, path, "FILE");
}

std::string error_of_calls(
    const std::vector<std::string>& calls,
    const std::string& output = tensor("y"),
    int64_t n = 3) {
  return error_of_graph(graph(calls, output), {}, n);
}

std::string relu(const std::string& from, const std::string& to) {
  return call(
      "torch.ops.aten.relu.default", {{"self", tensor(from)}}, {tensor(to)});
}

TEST(HostileGraph, RunsIfItIsValid) {
  EXPECT_EQ(error_of_calls({relu("x", "y")}), "");
}

// --- operators ---------------------------------------------------------------

constexpr const char* kRefusal =
    " is not on the list of operators without side effects. If you trust the "
    "file, allow it: LoadProgramOptions{.allowed_operators = {\"";

TEST(HostileGraph, DoesNotReadOrWriteFiles) {
  const Folder folder;
  const auto secret = folder.write("secret", std::string(24, 'a'));
  for (const auto* shared : {"true", "false"}) {
    const auto error = error_of_calls({
        call(
            "torch.ops.aten.from_file.default",
            {{"filename", R"({"as_string": ")" + secret + R"("})"},
             {"shared", std::string(R"({"as_bool": )") + shared + "}"},
             {"size", integer(6)}},
            {tensor("y")}),
        call(
            "torch.ops.aten.copy_.default",
            {{"self", tensor("y")}, {"src", tensor("x")}},
            {tensor("z")}),
    });
    EXPECT_EQ(
        error,
        std::string("[load_program] FILE: torch.ops.aten.from_file.default at "
                    "m.py:7: y = f(x) cannot be run: aten::from_file") +
            kRefusal + "aten::from_file\"}}.");
  }
  std::ifstream file(secret);
  EXPECT_EQ(
      std::string(std::istreambuf_iterator<char>(file), {}),
      std::string(24, 'a'));
}

TEST(HostileGraph, DoesNotCallOperatorsWithSideEffects) {
  for (const auto* name :
       {"aten.set_.source_Tensor",
        "aten.set_.source_Storage",
        "aten.set_data.default",
        "aten.resize_.default",
        "aten.resize_as_.default",
        "aten._resize_output_.default",
        "aten._reshape_alias.default",
        "aten._index_put_impl_.default",
        "aten._sparse_coo_tensor_unsafe.default",
        "aten._print.default",
        "aten._cudnn_init_dropout_state.default",
        "aten._cufft_set_plan_cache_max_size.default",
        "aten._test_check_tensor.default",
        "aten.segment_reduce.default",
        "aten.record_stream.default",
        "profiler._record_function_enter.default",
        "quantized.linear_prepack.default",
        "mkldnn._linear_pointwise.default"}) {
    EXPECT_THAT(
        error_of_calls({call(
            std::string("torch.ops.") + name,
            {{"self", tensor("x")}},
            {tensor("y")})}),
        AnyOf(HasSubstr(kRefusal), HasSubstr("no such operator is registered")))
        << name;
  }
}

// LibTorch's operators for gradients and for sparse tensors trust indices.
TEST(HostileGraph, DoesNotCallOperatorsThatTrustIndices) {
  for (const auto* name :
       {"max_pool2d_with_indices_backward.default",
        "max_pool3d_with_indices_backward.default",
        "adaptive_max_pool2d_backward.default",
        "adaptive_max_pool3d_backward.default",
        "embedding_dense_backward.default",
        "nll_loss_backward.default",
        "nll_loss2d_backward.default",
        "native_batch_norm_backward.default",
        "native_layer_norm_backward.default",
        "_log_softmax_backward_data.default",
        "_scaled_dot_product_flash_attention_for_cpu_backward.default",
        "_upsample_bilinear2d_aa_backward.default",
        "to_sparse.sparse_dim",
        "to_sparse_csr.default",
        "sparse_coo_tensor.indices",
        "sparse_mask.default",
        "hspmm.default",
        "sspaddmm.default",
        "coalesce.default",
        "indices.default",
        "values.default",
        "crow_indices.default",
        "indices_copy.default",
        "_indices.default",
        "_values.default",
        "ctc_loss.IntList",
        "_ctc_loss.default",
        "_stack.default",
        "mkldnn_rnn_layer.default",
        "fused_moving_avg_obs_fake_quant.default",
        "_native_multi_head_attention.default",
        "_transformer_encoder_layer_fwd.default"}) {
    EXPECT_THAT(
        error_of_calls({call(
            std::string("torch.ops.aten.") + name,
            {{"self", tensor("x")}},
            {tensor("y")})}),
        HasSubstr(kRefusal))
        << name;
  }
}

TEST(HostileGraph, CallsAllowedOperators) {
  const auto resizing = graph({
      call(
          "torch.ops.aten.clone.default",
          {{"self", tensor("x")}},
          {tensor("copy")}),
      call(
          "torch.ops.aten.resize_.default",
          {{"self", tensor("copy")}, {"size", R"({"as_ints": [3]})"}},
          {tensor("y")}),
  });
  EXPECT_THAT(error_of_graph(resizing), HasSubstr(kRefusal));
  EXPECT_EQ(
      error_of_graph(resizing, {.allowed_operators = {"aten::resize_"}}), "");
  EXPECT_EQ(error_of_graph(resizing, {.allowed_operators = {"aten::*"}}), "");
  EXPECT_THAT(
      error_of_graph(
          resizing, {.allowed_operators = {"aten::resize", "other::*"}}),
      HasSubstr(kRefusal));
}

TEST(HostileGraph, AllowedOperatorsAreNames) {
  const auto path = exported("mixed");
  for (const auto* name :
       {"", "*", "aten", "aten::", "::add", "aten::a*", "aten::add.Tensor"}) {
    EXPECT_EQ(
        error_of<c10::ValueError>(
            [&] { load_program(path, {.allowed_operators = {name}}); }),
        std::string("[load_program] allowed_operators has \"") + name +
            "\", which is not an operator name. Write \"torchvision::nms\" "
            "for all its overloads, or \"torchvision::*\" for a namespace.");
  }
}

// LibTorch itself checks as_strided, which exported programs call.
TEST(HostileGraph, AsStridedStaysWithinTheStorage) {
  const auto strided = [](const std::string& size, const std::string& stride) {
    return error_of_calls({call(
        "torch.ops.aten.as_strided.default",
        {{"self", tensor("x")},
         {"size", R"({"as_ints": [)" + size + "]}"},
         {"stride", R"({"as_ints": [)" + stride + "]}"}},
        {tensor("y")})});
  };
  EXPECT_EQ(strided("3", "2"), "");
  EXPECT_THAT(strided("4", "2"), HasSubstr("out of bounds"));
  EXPECT_THAT(strided("2", "2305843009213693952"), HasSubstr("overflowed"));
}

// Runs the calls on x, [[-2, -1, 0], [1, 2, 3]] in S(0), on a mesh.
at::Tensor result_on_mesh(
    const std::vector<std::string>& calls,
    int64_t ranks = 1,
    bool with_gradients = false) {
  const Folder folder;
  const auto path = write_program(folder / "m.pt2", graph(calls));
  at::Tensor result;
  run_ranks(ranks, [&] {
    const torch::AutoGradMode mode(with_gradients);
    const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
    auto program = load_program(path);
    parallelize_program(program, mesh);
    const auto x = at::arange(-2, 4, at::kFloat).view({2, 3});
    const auto given =
        distribute_tensor(x, mesh, {Shard(0)}).requires_grad_(with_gradients);
    const auto whole = full_tensor(program.run({given, 3})[0].toTensor());
    if (get_rank() == 0) {
      result = whole.detach();
    }
  });
  return result;
}

std::string clone(const std::string& from, const std::string& to) {
  return call(
      "torch.ops.aten.clone.default", {{"self", tensor(from)}}, {tensor(to)});
}

std::string column(const std::string& from, const std::string& to) {
  return call(
      "torch.ops.aten.select.int",
      {{"self", tensor(from)}, {"dim", integer(1)}, {"index", integer(0)}},
      {tensor(to)});
}

std::string relu_in_place(const std::string& from, const std::string& to) {
  return call(
      "torch.ops.aten.relu_.default", {{"self", tensor(from)}}, {tensor(to)});
}

// A run whose time is quadratic would exceed the time limit of the suite.
TEST(HostileGraph, ManyWritesTakeLinearTime) {
  constexpr int kMany = 100'000;
  const auto numbered = [](const char* name, int i) {
    return name + std::to_string(i);
  };
  std::vector<std::string> one_memory = {clone("x", "a0")};
  for (int i = 0; i < kMany; ++i) {
    one_memory.push_back(relu_in_place(numbered("a", i), numbered("a", i + 1)));
  }
  one_memory.push_back(clone("a0", "y"));
  EXPECT_EQ(result_on_mesh(one_memory).sum().item<float>(), 6);

  std::vector<std::string> many_memories = {clone("x", "y")};
  for (int i = 0; i < kMany / 4; ++i) {
    many_memories.push_back(clone("x", numbered("b", i)));
    many_memories.push_back(column(numbered("b", i), numbered("v", i)));
    many_memories.push_back(relu_in_place(numbered("v", i), numbered("w", i)));
  }
  EXPECT_EQ(result_on_mesh(many_memories).sum().item<float>(), 3);
}

TEST(HostileGraph, ManyViewsOfWrittenMemoryTakeLinearTime) {
  constexpr int kMany = 100'000;
  std::vector<std::string> calls = {clone("x", "a")};
  for (int i = 0; i < kMany; ++i) {
    calls.push_back(column("a", "v" + std::to_string(i)));
  }
  for (int i = 0; i < kMany; ++i) {
    const auto name = std::to_string(i);
    calls.push_back(relu_in_place("v" + name, "w" + name));
  }
  calls.push_back(clone("a", "y"));
  EXPECT_EQ(result_on_mesh(calls).sum().item<float>(), 5); // one column
}

// --- texts -------------------------------------------------------------------

TEST(HostileGraph, EmptyObjectsAreRefusedWithTheirLocation) {
  const std::string whole = graph({relu("x", "y")});
  for (const auto* object :
       {R"({"user_input": {"arg": {"as_tensor": {"name": "x"}}}})",
        R"({"user_output": {"arg": {"as_tensor": {"name": "y"}}}})",
        R"({"as_tensor": {"name": "x"}})",
        R"({"as_tensor": {"name": "y"}})",
        R"({"as_sym_int": {"as_name": "n"}})",
        R"({"name": "x"})",
        R"({"as_int": 2})",
        R"({"type": "cpu"})"}) {
    for (const auto* instead :
         {"{}", "[]", "null", "3", R"({"a": 1, "b": 2})"}) {
      const auto error = error_of_graph(replaced(whole, object, instead));
      EXPECT_THAT(
          error,
          AllOf(
              StartsWith(
                  "[load_program] FILE: models/model.json: graph_module."),
              HasSubstr("Write it with torch.export.save() of PyTorch 2.8")))
          << object << " -> " << instead;
    }
  }
}

TEST(HostileGraph, AnyStringMayBeMissing) {
  const std::string whole = graph({relu("x", "y")});
  for (size_t at = whole.find('"'); at != std::string::npos;) {
    const auto end = whole.find('"', at + 1);
    const auto changed = whole.substr(0, at) + "\"zz\"" + whole.substr(end + 1);
    error_of_graph(changed); // checks the form of the error, if any
    at = whole.find('"', end + 1);
  }
}

TEST(HostileGraph, NestingIsBounded) {
  const auto deep = repeated("[", 100000) + repeated("]", 100000);
  EXPECT_EQ(
      error_of_graph(replaced(
          graph({}),
          "\"range_constraints\": {}",
          "\"range_constraints\": " + deep)),
      "[load_program] FILE: models/model.json: more than 128 nested levels. "
      "Write it with torch.export.save() of PyTorch 2.8 or newer.");
}

TEST(HostileGraph, ScopesWithinScopesAreBounded) {
  std::string inner = relu("x", "y");
  const auto scope = [&](const std::string& nodes) {
    return call(
        "torch.ops.higher_order.wrap_with_set_grad_enabled",
        {{"", R"({"as_bool": false})"},
         {"",
          R"({"as_graph": {"graph": {"inputs": [)" + tensor("x") +
              R"(], "outputs": [)" + tensor("y") + R"(], "nodes": [)" + nodes +
              "]}}}"},
         {"", tensor("x")}},
        {tensor("y")});
  };
  for (int i = 0; i < 10; ++i) {
    inner = scope(inner);
  }
  EXPECT_EQ(error_of_calls({inner}), "");
  for (int i = 0; i < 10; ++i) {
    inner = scope(inner);
  }
  EXPECT_THAT(
      error_of_calls({inner}), HasSubstr("more than 128 nested levels"));
}

TEST(HostileGraph, OutSpecIsBounded) {
  const auto with_spec = [](const std::string& spec) {
    return replaced(
        graph({relu("x", "y")}),
        R"("module_call_graph": [])",
        R"("module_call_graph": [{"fqn": "", "signature": {"out_spec": ")" +
            replaced(spec, "\"", "\\\"") + R"("}}])");
  };
  const auto nested = [](size_t levels) {
    return R"([1, )" +
        repeated(
               R"({"type": "builtins.list", "context": "null", "children_spec": [)",
               levels) +
        R"({"type": null, "context": null, "children_spec": []})" +
        repeated("]}", levels) + "]";
  };
  EXPECT_EQ(error_of_graph(with_spec(nested(50))), "");
  EXPECT_EQ(
      error_of_graph(with_spec(nested(60000))),
      "[load_program] FILE: models/model.json: out_spec: more than 128 nested "
      "levels.");
  EXPECT_THAT(
      error_of_graph(with_spec("[1]")),
      HasSubstr("out_spec: expected more than 1 element, got 1"));
}

// Returns the names of two results whose tree has a node of that kind.
std::vector<std::string> names_of_results(const std::string& context) {
  const auto escaped = [](const std::string& text) {
    return replaced(replaced(text, "\\", "\\\\"), "\"", "\\\"");
  };
  const std::string leaf =
      R"({"type": null, "context": null, "children_spec": []})";
  const auto tree = R"([1, {"type": "m.Kind", "context": ")" +
      escaped(context) + R"(", "children_spec": [)" + leaf + ", " + leaf +
      "]}]";
  const std::string output =
      R"({"user_output": {"arg": {"as_tensor": {"name": "y"}}}})";
  auto text = replaced(graph({relu("x", "y")}), output, output + ", " + output);
  text = replaced(
      text,
      R"("module_call_graph": [])",
      R"("treespec_namedtuple_fields": {"m.Pair": {"field_names": ["l", "r"]}},)"
      R"("module_call_graph": [{"fqn": "", "signature": {"out_spec": ")" +
          escaped(tree) + R"("}}])");
  const Folder folder;
  return load_program(write_program(folder / "m.pt2", text)).output_names();
}

TEST(HostileGraph, ResultsHaveTheNamesOfTheirContainers) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(names_of_results(R"(["a", 7])"), (Names{"a", "7"}));
  EXPECT_EQ(
      names_of_results(
          R"({"default_factory_name": "list", "dict_context": ["a", "b"]})"),
      (Names{"a", "b"}));
  EXPECT_EQ(names_of_results(R"("m.Pair")"), (Names{"l", "r"}));
  for (const auto* other : {R"("m.Other")", "a, b", R"(["a"])", "", "{}"}) {
    EXPECT_EQ(names_of_results(other), (Names{"0", "1"})) << other;
  }
}

std::string with_parameter(const std::string& name) {
  return replaced(
      graph({relu("x", "y")}),
      R"({"user_input": {"arg": {"as_sym_int": {"as_name": "n"}}}})",
      R"({"parameter": {"parameter_name": ")" + name +
          R"(", "arg": {"name": "x"}}})");
}

TEST(HostileGraph, NamesOfParametersAreBounded) {
  EXPECT_THAT(
      error_of_graph(with_parameter(repeated("a.", 50000) + "b")),
      HasSubstr("parameter_name: the name has 50001 components, but at most "
                "100 are allowed"));
  for (const auto* name : {"", ".a", "a.", "a..b", "."}) {
    EXPECT_THAT(
        error_of_graph(with_parameter(name)),
        HasSubstr(c10::str(
            "parameter_name: the name \"", name, "\" has an empty component")));
  }
  EXPECT_EQ(
      error_of_graph(with_parameter("a.b")),
      "[load_program] FILE has no values for a.b. Export the program again.");
}

// --- arguments and results ---------------------------------------------------

TEST(HostileGraph, ArgumentsHaveTheirTypes) {
  const auto error = [](const std::string& name, const std::string& value) {
    return error_of_calls({call(
        "torch.ops.aten.softmax.int",
        {{"self", tensor("x")}, {"dim", integer(0)}, {name, value}},
        {tensor("y")})});
  };
  const std::string begin =
      "[load_program] FILE: torch.ops.aten.softmax.int at m.py:7: y = f(x) "
      "cannot be run: it has ";
  EXPECT_EQ(error("dtype", R"({"as_scalar_type": 8})"), "");
  EXPECT_EQ(error("dtype", R"({"as_none": true})"), "");
  // LibTorch does not check this enumerator.
  EXPECT_EQ(
      error("dtype", integer(999)),
      begin + "a Int where Optional[ScalarType] is expected.");
  EXPECT_EQ(
      error("dtype", R"({"as_scalar_type": 99})"),
      begin + "an unknown dtype number 99.");
  EXPECT_EQ(
      error("other", integer(1)),
      begin +
          "an argument other, which this LibTorch's operator does not take.");
  EXPECT_THAT(error("dim", integer(1)), HasSubstr("duplicate argument dim"));
  const auto dim = [](const std::string& value) {
    return error_of_calls({call(
        "torch.ops.aten.softmax.int",
        {{"self", tensor("x")}, {"dim", value}},
        {tensor("y")})});
  };
  EXPECT_EQ(dim(tensor("x")), begin + "the tensor x where int is expected.");
  EXPECT_EQ(
      dim(R"({"as_string": "0"})"), begin + "a String where int is expected.");
  EXPECT_EQ(
      dim(R"({"as_none": true})"), begin + "a None where int is expected.");
  EXPECT_THAT(dim(number("n")), HasSubstr("in aten::softmax at m.py:7"));
}

TEST(HostileGraph, ValuesHaveTheirKinds) {
  EXPECT_THAT(
      error_of_calls({relu("q", "y")}),
      HasSubstr("nodes[0].inputs[0].arg.as_tensor.name: no input or node "
                "defines the value \"q\""));
  EXPECT_THAT(
      error_of_calls({relu("n", "y")}),
      HasSubstr("expected a tensor, but \"n\" is a number"));
  EXPECT_THAT(
      error_of_calls({relu("x", "y")}, number("y")),
      HasSubstr("expected a number, but \"y\" is a tensor"));
}

TEST(HostileGraph, ResultsMatchTheOperator) {
  const auto error = [](const std::vector<std::string>& outputs) {
    return error_of_calls(
        {call("torch.ops.aten.relu.default", {{"self", tensor("x")}}, outputs)},
        tensor("x"));
  };
  EXPECT_EQ(error({}), ""); // never used
  EXPECT_THAT(
      error({tensor("y"), tensor("z")}),
      HasSubstr("it has 2 results, but returns 1."));
  EXPECT_THAT(
      error({number("y")}),
      HasSubstr("a result of unsupported kind as_sym_int."));
  EXPECT_THAT(
      error({R"({"as_tensors": [{"name": "y"}]})"}),
      HasSubstr("a result of unsupported kind as_tensors."));
}

TEST(HostileGraph, FunctionsOfNumbersTakeAllTheirArguments) {
  const auto error = [](const std::string& target,
                        const std::vector<std::string>& args,
                        const std::vector<std::string>& outputs) {
    std::vector<Given> inputs;
    for (const auto& arg : args) {
      inputs.emplace_back("a", arg);
    }
    return error_of_calls({call(target, inputs, outputs)}, tensor("x"));
  };
  const std::vector<std::string> one = {number("m")};
  EXPECT_THAT(
      error("_operator.add", {number("n")}, one),
      HasSubstr("_operator.add at m.py:7: y = f(x) cannot be run: it has 1 "
                "argument, but takes 2."));
  EXPECT_THAT(error("math.ceil", {}, one), HasSubstr("it has 0 arguments"));
  EXPECT_THAT(
      error("torch.sym_ite", {number("n")}, one), HasSubstr("but takes 3."));
  EXPECT_THAT(
      error("_operator.add", {number("n"), integer(1)}, {}),
      HasSubstr("it has 0 results, but returns 1."));
  EXPECT_THAT(
      error("_operator.add", {tensor("x"), integer(1)}, one),
      HasSubstr("it has the tensor x where"));
  EXPECT_THAT(
      error("torch.ops.aten.sym_size.int", {number("n"), integer(0)}, one),
      HasSubstr("in torch.ops.aten.sym_size.int at m.py:7: y = f(x) (FILE)"));
  EXPECT_THAT(
      error("torch.ops.aten.sym_size.int", {tensor("x"), integer(7)}, one),
      HasSubstr("in torch.ops.aten.sym_size.int at m.py:7: y = f(x) (FILE)"));
}

// LibTorch asserts conditions that its own callers ensure. Such an assertion
// becomes an error of the program.
TEST(HostileGraph, AssertionsOfOperatorsAreErrorsOfTheProgram) {
  EXPECT_THAT(
      error_of_calls({
          call(
              "torch.ops.aten._to_copy.default",
              {{"self", tensor("x")}, {"dtype", R"({"as_scalar_type": 10})"}},
              {tensor("c")}),
          call(
              "torch.ops.aten._fft_c2r.default",
              {{"self", tensor("c")},
               {"dim", R"({"as_ints": [0]})"},
               {"normalization", integer(0)},
               {"last_dim_size", integer(1000)}},
              {tensor("y")}),
      }),
      AllOf(
          StartsWith("[Program] an operator does not accept its arguments: "),
          HasSubstr("in aten::_fft_c2r at m.py:7: y = f(x) (FILE)")));
}

at::Tensor sample() {
  return at::arange(-2, 4, at::kFloat).view({2, 3});
}

std::string ints(const std::string& values) {
  return R"({"as_ints": [)" + values + "]}";
}

std::string tensors(const std::string& name) {
  return R"({"as_tensors": [{"name": ")" + name + R"("}]})";
}

constexpr const char* kNone = R"({"as_none": true})";

// Returns the result of a graph for x = [[-2, -1, 0], [1, 2, 3]] and n = 3.
c10::IValue result_of_graph(
    const std::string& text,
    const LoadProgramOptions& options = {},
    const at::Tensor& x = sample()) {
  const torch::NoGradGuard no_grad;
  const Folder folder;
  auto program = load_program(write_program(folder / "m.pt2", text), options);
  return program.run({x, int64_t{3}}).at(0);
}

at::Tensor result_of(
    const std::vector<std::string>& calls,
    const LoadProgramOptions& options = {}) {
  return result_of_graph(graph(calls), options).toTensor();
}

std::string layer_norm(
    const std::string& eps,
    const std::string& weight = kNone) {
  return call(
      "torch.ops.aten.layer_norm.default",
      {{"input", tensor("x")},
       {"normalized_shape", ints("3")},
       {"weight", weight},
       {"eps", eps}},
      {tensor("y")});
}

std::string native_layer_norm(const std::vector<std::string>& outputs) {
  return call(
      "torch.ops.aten.native_layer_norm.default",
      {{"input", tensor("x")},
       {"normalized_shape", ints("3")},
       {"eps", R"({"as_float": 0.5})"}},
      outputs);
}

// Python converts the arguments of operators in the same way.
TEST(HostileGraph, ArgumentsAreConverted) {
  const auto x = sample();
  const auto normed = [&](double eps) {
    return at::layer_norm(x, {3}, {}, {}, eps);
  };
  EXPECT_TRUE(result_of({layer_norm(integer(2))}).equal(normed(2)));
  EXPECT_TRUE(result_of({layer_norm(R"({"as_bool": true})")}).equal(normed(1)));
  EXPECT_TRUE(result_of({layer_norm(number("n"))}).equal(normed(3)));
  EXPECT_TRUE(result_of({layer_norm(R"({"as_sym_int": {"as_int": 2}})")})
                  .equal(normed(2)));
  const auto row = call(
      "torch.ops.aten.select.int",
      {{"self", tensor("x")}, {"dim", integer(0)}, {"index", integer(1)}},
      {tensor("w")});
  EXPECT_TRUE(result_of({row,
                         layer_norm(
                             integer(1),
                             R"({"as_optional_tensor": )" + tensor("w") + "}")})
                  .equal(at::layer_norm(x, {3}, x[1], {}, 1)));
  EXPECT_TRUE(
      result_of({layer_norm(
                    integer(1),
                    std::string(R"({"as_optional_tensor": )") + kNone + "}")})
          .equal(normed(1)));
  EXPECT_TRUE(result_of({native_layer_norm({tensor("y"), kNone, kNone})})
                  .equal(normed(0.5)));
  EXPECT_TRUE(
      result_of({call(
                    "torch.ops.aten.softmax.int",
                    {{"self", tensor("x")}, {"dim", R"({"as_bool": true})"}},
                    {tensor("y")})})
          .equal(at::softmax(x, 1)));
  EXPECT_TRUE(result_of({call(
                            "torch.ops.aten.sum.dim_IntList",
                            {{"self", tensor("x")}, {"dim", kNone}},
                            {tensor("y")})})
                  .equal(x.sum()));
  const auto sum = result_of({call(
      "torch.ops.aten.add.Scalar",
      {{"self", tensor("x")},
       {"other", R"({"as_complex": {"real": 1.0, "imag": 2.0}})"}},
      {tensor("y")})});
  EXPECT_TRUE(sum.equal(at::add(x, c10::complex<double>(1, 2))));
}

TEST(HostileGraph, ListsOfNumbersAreConverted) {
  const auto x = sample();
  const auto images = call(
      "torch.ops.aten.view.default",
      {{"self", tensor("x")}, {"size", ints("1, 1, 2, 3")}},
      {tensor("i")});
  const auto scaled = [&](const std::string& scales) {
    return result_of(
        {images,
         call(
             "torch.ops.aten.upsample_nearest2d.vec",
             {{"input", tensor("i")},
              {"output_size", kNone},
              {"scale_factors", scales}},
             {tensor("y")})});
  };
  const auto truth = [&](double height) {
    return at::upsample_nearest2d(
        x.view({1, 1, 2, 3}), std::nullopt, at::ArrayRef<double>{height, 2});
  };
  EXPECT_TRUE(scaled(R"({"as_floats": [1.5, 2.0]})").equal(truth(1.5)));
  EXPECT_TRUE(scaled(ints("3, 2")).equal(truth(3)));
  EXPECT_TRUE(scaled(R"({"as_sym_ints": [{"as_name": "n"}, {"as_int": 2}]})")
                  .equal(truth(3)));
  const auto sum = [](const std::string& scalars) {
    return result_of({call(
        "torch.ops.aten._foreach_add.ScalarList",
        {{"self", tensors("x")}, {"scalars", scalars}},
        {tensors("y")})});
  };
  EXPECT_TRUE(sum(R"({"as_floats": [2.5]})").equal(x + 2.5));
  EXPECT_TRUE(sum(R"({"as_sym_ints": [{"as_name": "n"}]})").equal(x + 3));
  const auto gradient = result_of(
      {native_layer_norm({tensor("z"), tensor("m"), tensor("r")}),
       call(
           "torch.ops.aten.native_layer_norm_backward.default",
           {{"grad_out", tensor("x")},
            {"input", tensor("x")},
            {"normalized_shape", ints("3")},
            {"mean", tensor("m")},
            {"rstd", tensor("r")},
            {"weight", kNone},
            {"bias", kNone},
            {"output_mask", R"({"as_bools": [true, false, false]})"}},
           {tensor("y"), kNone, kNone})},
      {.allowed_operators = {"aten::native_layer_norm_backward"}});
  const auto input = sample().requires_grad_();
  at::layer_norm(input, {3}, {}, {}, 0.5).backward(x);
  EXPECT_TRUE(gradient.allclose(input.grad()));
}

TEST(HostileGraph, ResultsMayBeNumbers) {
  const auto text = graph(
      {call(
           "torch.ops.aten.sum.default",
           {{"self", tensor("x")}},
           {tensor("s")}),
       call(
           "torch.ops.aten._local_scalar_dense.default",
           {{"self", tensor("s")}},
           {R"({"as_sym_float": {"as_name": "m"}})"})},
      R"({"as_sym_float": {"as_name": "m"}})");
  EXPECT_EQ(result_of_graph(text).toDouble(), 3);
}

struct RefusedCase {
  const char* target;
  std::vector<Given> given;
  const char* why;
};

TEST(HostileGraph, ArgumentsOfOtherKindsAreRefused) {
  const std::vector<RefusedCase> cases = {
      {"gelu.default",
       {{"self", tensor("x")}, {"approximate", tensor("x")}},
       "it has the tensor x where str is expected."},
      {"zeros.default",
       {{"size", ints("2")}, {"layout", R"({"as_layout": 1})"}},
       "it has a layout that is not strided."},
      {"permute.default",
       {{"self", tensor("x")}, {"dims", integer(3)}},
       "it has as_int instead of a list."},
      {"permute.default",
       {{"self", tensor("x")}, {"dims", kNone}},
       "it has a None where List[int] is expected."},
      {"cat.default",
       {{"tensors", R"({"as_sym_ints": [{"as_name": "n"}]})"}},
       "it has a number in a list of tensors."},
  };
  for (const auto& [target, given, why] : cases) {
    const auto name = std::string("torch.ops.aten.") + target;
    EXPECT_EQ(
        error_of_calls({call(name, given, {tensor("y")})}),
        "[load_program] FILE: " + name +
            " at m.py:7: y = f(x) cannot be run: " + why);
  }
  EXPECT_THAT(
      error_of_calls({layer_norm(R"({"as_float": "zero"})")}),
      HasSubstr("nodes[0].inputs[3].arg.as_float: expected a number, got a "
                "string: \"zero\""));
  for (const auto* target : {"torch.ops.aten", "torch.ops.aten.relu"}) {
    EXPECT_EQ(
        error_of_calls({call(target, {{"self", tensor("x")}}, {tensor("y")})}),
        std::string("[load_program] FILE: ") + target +
            " at m.py:7: y = f(x) cannot be run: it is not a registered "
            "operator.");
  }
}

TORCH_LIBRARY(dtensor_test_program, m) {
  m.def("with_words(Tensor x, str[] words) -> Tensor");
  m.def("twice(Tensor x) -> Tensor", [](const at::Tensor& x) { return x * 2; });
}

TEST(HostileGraph, OperatorsOfLibrariesAreCalled) {
  const LoadProgramOptions options{
      .allowed_operators = {"dtensor_test_program::*"}};
  const auto twice = call(
      "torch.ops.dtensor_test_program.twice.default",
      {{"x", tensor("x")}},
      {tensor("y")});
  EXPECT_TRUE(result_of({twice}, options).equal(sample() * 2));
  const auto with_words = call(
      "torch.ops.dtensor_test_program.with_words.default",
      {{"x", tensor("x")}, {"words", R"({"as_strings": ["a"]})"}},
      {tensor("y")});
  EXPECT_THAT(
      error_of_graph(graph({with_words}), options),
      HasSubstr("cannot be run: it has a list of unsupported type str."));
}

// Operators throw errors of the C++ library when a list or a tensor is too
// large.
TEST(HostileGraph, ListsThatAreTooLongAreErrorsOfTheProgram) {
  for (const auto sections : {int64_t{1} << 62, int64_t{1} << 45}) {
    EXPECT_THAT(
        error_of_calls({call(
            "torch.ops.aten.tensor_split.sections",
            {{"self", tensor("x")}, {"sections", integer(sections)}},
            {tensors("y")})}),
        AllOf(
            StartsWith("[Program] an operator does not accept its arguments: "),
            HasSubstr("in aten::tensor_split at m.py:7: y = f(x) (FILE)")));
  }
}

// --- products ----------------------------------------------------------------

std::string transposed(const std::string& from, const std::string& to) {
  return call(
      "torch.ops.aten.permute.default",
      {{"self", tensor(from)}, {"dims", ints("1, 0")}},
      {tensor(to)});
}

std::string product(
    const std::string& target,
    const std::string& from,
    const std::string& matrix,
    std::vector<Given> more = {}) {
  more.insert(more.begin(), {{"self", tensor(from)}, {"mat2", tensor(matrix)}});
  return call("torch.ops.aten." + target, more, {tensor("y")});
}

std::string viewed(
    const std::string& target,
    const std::string& from,
    const std::string& sizes,
    const std::string& to) {
  return call(
      "torch.ops.aten." + target,
      {{"self", from}, {"size", ints(sizes)}},
      {tensor(to)});
}

TEST(HostileGraph, ProductsWithOtherMatricesAreComputed) {
  const auto x = sample();
  EXPECT_TRUE(result_of({transposed("x", "t"),
                         relu("t", "m"),
                         product("mm.default", "x", "m")})
                  .equal(x.mm(x.t().relu())));
  const auto batch = viewed("view.default", tensor("x"), "1, 2, 3", "b");
  const auto doubles = call(
      "torch.ops.aten._to_copy.default",
      {{"self", tensor("b")}, {"dtype", R"({"as_scalar_type": 8})"}},
      {tensor("d")});
  const auto twos =
      viewed("expand.default", R"({"as_float": 2.0})", "1, 3, 4", "m");
  EXPECT_TRUE(
      result_of({batch, doubles, twos, product("bmm.default", "d", "m")})
          .equal(x.to(at::kDouble)
                     .sum(1)
                     .mul(2)
                     .view({1, 2, 1})
                     .expand({1, 2, 4})));
  const auto expanded = viewed("expand.default", tensor("t"), "1, 3, 2", "m");
  EXPECT_TRUE(result_of({batch,
                         transposed("x", "t"),
                         expanded,
                         product("bmm.default", "b", "m")})
                  .equal(x.mm(x.t()).view({1, 2, 2})));
}

// --- sharded values ----------------------------------------------------------

std::string unary(
    const std::string& target,
    const std::string& from,
    std::vector<Given> more,
    const std::string& to) {
  more.insert(more.begin(), {"self", tensor(from)});
  return call("torch.ops.aten." + target, more, {tensor(to)});
}

std::string add(const std::string& a, const std::string& b) {
  return unary("add.Tensor", a, {{"other", tensor(b)}}, "y");
}

std::string element(int64_t index, const std::string& to) {
  return unary(
      "select.int", "c", {{"dim", integer(1)}, {"index", integer(index)}}, to);
}

// The results of calls on a mesh are those on plain tensors, whatever the
// layout of their operands.
TEST(HostileGraph, ShardedValuesGiveTheSameResults) {
  const std::vector<std::vector<std::string>> programs = {
      {unary(
          "_to_copy.default",
          "x",
          {{"dtype", R"({"as_scalar_type": 8})"},
           {"device", R"({"as_device": {"type": "cpu"}})"}},
          "y")},
      // A write through a view of all elements.
      {clone("x", "c"),
       viewed("view.default", tensor("c"), "6", "v"),
       relu_in_place("v", "w"),
       add("c", "x")},
      // Writes through several views of one tensor.
      {clone("x", "c"),
       element(0, "a"),
       relu_in_place("a", "a1"),
       element(1, "b"),
       unary("cumsum_.default", "b", {{"dim", integer(0)}}, "b1"),
       element(2, "d"),
       unary("cumsum_.default", "d", {{"dim", integer(0)}}, "d1"),
       add("c", "x")}};
  for (size_t i = 0; i < programs.size(); ++i) {
    const auto truth = result_of(programs[i]);
    for (const int64_t ranks : {1, 2, 3}) {
      EXPECT_TRUE(result_on_mesh(programs[i], ranks).equal(truth))
          << "program " << i << " on " << ranks;
    }
  }
}

// A product with a dtype for its result is no call of linear(), which has none.
TEST(HostileGraph, ProductsWithADtypeStay) {
  const auto operators = [](const std::string& last) {
    auto text = graph({transposed("w", "t"), last});
    text = replaced(
        text,
        R"("input_specs": [)",
        R"("input_specs": [{"parameter": {"parameter_name": "w", )"
        R"("arg": {"name": "w"}}}, )");
    text = replaced(
        text,
        R"("tensor_values": {)",
        R"("tensor_values": {"w": {"dtype": 7, "sizes": [{"as_int": 5}, )"
        R"({"as_int": 3}], "requires_grad": true, )"
        R"("device": {"type": "cpu"}}, )");
    std::vector<std::string> names;
    for (const auto& node : detail::read_graph(text, {"m.pt2"}).nodes) {
      names.push_back(node.target);
    }
    return names;
  };
  EXPECT_EQ(
      operators(product("mm.default", "x", "t")),
      std::vector<std::string>{"aten::linear"});
  const c10::OperatorName with_dtype("aten::mm", "dtype");
  if (c10::Dispatcher::singleton().findSchema(with_dtype)) {
    EXPECT_EQ(
        operators(product(
            "mm.dtype", "x", "t", {{"out_dtype", R"({"as_scalar_type": 8})"}})),
        (std::vector<std::string>{"aten::permute", "aten::mm"}));
  }
}

// --- inputs and outputs ------------------------------------------------------

constexpr const char* kInputX =
    R"({"user_input": {"arg": {"as_tensor": {"name": "x"}}}})";
constexpr const char* kInputN =
    R"({"user_input": {"arg": {"as_sym_int": {"as_name": "n"}}}})";
constexpr const char* kOutputY =
    R"({"user_output": {"arg": {"as_tensor": {"name": "y"}}}})";

TEST(HostileGraph, SignaturesAreChecked) {
  const auto whole = graph({relu("x", "y")});
  const std::vector<std::array<std::string, 3>> cases = {
      {kInputN, kInputX, "signature.input_specs[1]: duplicate input \"x\""},
      {R"("dtype": 7)",
       R"("dtype": 99)",
       "tensor_values.x.dtype: x has an unknown dtype"},
      {R"({"as_int": 3}])",
       R"({"as_int": 281474976710656}])",
       "tensor_values.x.sizes[1]: x has too many elements"},
      {R"("type": "cpu")",
       R"("type": 3)",
       "tensor_values.x.device.type: expected a string, got 3"},
      {kOutputY,
       R"({"user_input_mutation": {"arg": {"name": "y"}, )"
       R"("user_input_name": "n"}})",
       "signature.output_specs[0].user_input_mutation.user_input_name: the "
       "graph writes to it, but it is not an input"},
      {kOutputY,
       R"({"buffer_mutation": {"arg": {"name": "y"}, "buffer_name": "x"}})",
       "signature.output_specs[0].buffer_mutation.buffer_name: the graph "
       "writes to it, but it is not an input"},
  };
  for (const auto& [from, to, why] : cases) {
    EXPECT_THAT(error_of_graph(replaced(whole, from, to)), HasSubstr(why));
  }
  EXPECT_THAT(
      error_of_graph(replaced(
          whole,
          kInputN,
          R"({"constant_input": {"name": "k", "value": {"as_int": 3}}})")),
      StartsWith("[Program] FILE takes 1 input (x), got 2."));
}

// Descriptions of values inside the graph are hints.
TEST(HostileGraph, UnsupportedDescriptionsOfValuesAreIgnored) {
  for (const auto* about :
       {R"({"dtype": 99})",
        R"({"dtype": 7, "sizes": [{"as_int": 8589934592}, )"
        R"({"as_int": 8589934592}]})"}) {
    EXPECT_EQ(
        error_of_graph(replaced(
            graph({relu("x", "y")}),
            R"("tensor_values": {)",
            R"("tensor_values": {"y": )" + std::string(about) + ", ")),
        "");
  }
}

TEST(HostileGraph, OutputsMayBeLossesAndWrittenInputs) {
  const auto whole = graph({relu("x", "y")});
  EXPECT_TRUE(
      result_of_graph(
          replaced(
              whole, kOutputY, R"({"loss_output": {"arg": {"name": "y"}}})"))
          .toTensor()
          .equal(sample().relu()));
  const auto x = sample();
  result_of_graph(
      replaced(
          whole,
          kOutputY,
          R"({"user_input_mutation": {"arg": {"name": "y"}, )"
          R"("user_input_name": "x"}}, )" +
              std::string(kOutputY)),
      {},
      x);
  EXPECT_TRUE(x.equal(sample().relu()));
}

TEST(HostileGraph, SizesWithOneNameAreEqual) {
  const auto with_sizes = [](const std::string& a, const std::string& b) {
    const auto size = [](const std::string& name) {
      return R"({"as_expr": {"expr_str": "Symbol(')" + name +
          R"json(', positive=True, integer=True)"}})json";
    };
    return error_of_graph(replaced(
        graph({relu("x", "y")}),
        R"([{"as_int": 2}, {"as_int": 3}])",
        "[" + size(a) + ", " + size(b) + "]"));
  };
  EXPECT_EQ(with_sizes("s0", "s1"), "");
  EXPECT_EQ(
      with_sizes("s0", "s0"),
      "[Program] input x of FILE is f32[2, 3], but the program was exported "
      "for f32[s0, s0], where s0 is 2 as in dim 0 of x. Pass a tensor of that "
      "dtype and shape, or export the program with dynamic_shapes.");
}

// --- scopes ------------------------------------------------------------------

// Returns a call that runs `nodes` in a scope, with the value `input` for x.
std::string scoped(
    const std::string& operation,
    std::vector<Given> options,
    const std::string& nodes,
    const std::vector<std::string>& results,
    const std::string& outputs,
    const std::string& input = "x") {
  options.emplace_back(
      "",
      R"({"as_graph": {"graph": {"inputs": [)" + tensor("x") +
          R"(], "outputs": [)" + c10::Join(", ", results) + R"(], "nodes": [)" +
          nodes + "]}}}");
  options.emplace_back("", tensor(input));
  return call(
      "torch.ops.higher_order.wrap_with_" + operation, options, {outputs});
}

TEST(HostileGraph, ScopesGiveLists) {
  const auto both = scoped(
      "set_grad_enabled",
      {{"", R"({"as_bool": false})"}},
      relu("x", "a") + ", " +
          call(
              "torch.ops.aten.neg.default",
              {{"self", tensor("x")}},
              {tensor("b")}),
      {tensor("a"), tensor("b")},
      R"({"as_tensors": [{"name": "p"}, {"name": "q"}]})");
  const auto sum = call(
      "torch.ops.aten.sub.Tensor",
      {{"self", tensor("p")}, {"other", tensor("q")}},
      {tensor("y")});
  EXPECT_TRUE(result_of({both, sum}).equal(sample().relu() + sample()));
}

// A value that is redistributed without gradients is redistributed again.
TEST(HostileGraph, ScopesWithoutGradientsKeepTheirValues) {
  const auto softmax = [](const std::string& from, const std::string& to) {
    return unary("softmax.int", from, {{"dim", integer(0)}}, to);
  };
  const std::vector<std::string> calls = {
      scoped(
          "set_grad_enabled",
          {{"", R"({"as_bool": false})"}},
          softmax("x", "a"),
          {tensor("a")},
          tensor("a")),
      softmax("x", "b"),
      add("a", "b")};
  const auto truth = sample().softmax(0) * 2;
  EXPECT_TRUE(result_of(calls).allclose(truth));
  for (const int64_t ranks : {1, 2, 3}) {
    EXPECT_TRUE(result_on_mesh(calls, ranks, true).allclose(truth)) << ranks;
  }
}

TEST(HostileGraph, ScopesAreChecked) {
  EXPECT_THAT(
      error_of_calls({scoped(
          "set_grad_enabled",
          {{"", R"({"as_bool": false})"}},
          relu("x", "y"),
          {tensor("y")},
          tensor("y"),
          "q")}),
      HasSubstr("nodes[0].inputs[2].arg: no input or node defines the value "
                "\"q\""));
  const auto cast = [](int64_t dtype, const std::string& nodes) {
    return error_of_calls({scoped(
        "autocast",
        {{"", R"({"as_string": "cpu"})"},
         {"", R"({"as_scalar_type": )" + std::to_string(dtype) + "}"},
         {"", R"({"as_bool": true})"},
         {"", kNone}},
        nodes,
        {tensor("y")},
        tensor("y"))});
  };
  const auto check = [](const std::vector<Given>& given) {
    return call("torch.ops.aten._assert_tensor_metadata.default", given, {}) +
        ", " + relu("x", "y");
  };
  const std::string begin = "[load_program] FILE: torch.ops.";
  const std::string middle = " at m.py:7: y = f(x) cannot be run: it has ";
  EXPECT_EQ(cast(13, check({{"a", tensor("x")}})), "");
  EXPECT_EQ(
      cast(99, relu("x", "y")),
      begin + "higher_order.wrap_with_autocast" + middle +
          "an unknown dtype number 99.");
  EXPECT_EQ(
      cast(13, check({{"dtype", R"({"as_scalar_type": 7})"}})),
      begin + "aten._assert_tensor_metadata.default" + middle +
          "no argument a.");
}

// --- numbers -----------------------------------------------------------------

// Returns the result of `target` for the graph's number n = `n` and a constant.
std::string
number_of(const std::string& target, int64_t n, const std::string& other) {
  const Folder folder;
  const auto path = write_program(
      folder / "m.pt2",
      graph(
          {call(target, {{"a", number("n")}, {"b", other}}, {number("m")})},
          number("m")));
  auto program = load_program(path);
  try {
    const auto result = program.run({torch::ones({2, 3}), n}).at(0);
    return result.isInt() ? std::to_string(result.toInt())
        : result.isBool() ? (result.toBool() ? "True" : "False")
                          : c10::str(result.toDouble());
  } catch (const c10::ValueError& error) {
    const std::string text = error.what_without_backtrace();
    EXPECT_THAT(
        text,
        HasSubstr("in " + target + " at m.py:7: y = f(x) (" + path + ")"));
    return text.substr(0, text.find(". "));
  }
}

constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr const char* kOutside =
    "[Program] an integer in the graph overflows 64 bits";

struct NumberCase {
  const char* target;
  int64_t n;
  int64_t other;
  const char* expected;
};

TEST(HostileGraph, ComputesIntegersAsPythonDoesOrRefuses) {
  const std::vector<NumberCase> cases = {
      {"_operator.add", kMost, 1, kOutside},
      {"_operator.add", kMost, 0, "9223372036854775807"},
      {"_operator.sub", kLeast, 1, kOutside},
      {"_operator.sub", -5, 7, "-12"},
      {"_operator.mul", kMost, 2, kOutside},
      {"_operator.mul", kLeast, -1, kOutside},
      {"_operator.floordiv", kLeast, -1, kOutside},
      {"_operator.floordiv", kLeast, 3, "-3074457345618258603"},
      {"_operator.floordiv", -7, 2, "-4"},
      {"_operator.floordiv", 7, -2, "-4"},
      {"_operator.floordiv",
       7,
       0,
       "[Program] the graph divides a size by zero"},
      {"_operator.mod", kLeast, -1, "0"},
      {"_operator.mod", kLeast, 3, "1"},
      {"_operator.mod", -7, 2, "1"},
      {"_operator.mod", 7, -2, "-1"},
      {"_operator.pow", 3, int64_t{1} << 62, kOutside},
      {"_operator.pow", 1, kMost, "1"},
      {"_operator.pow", -1, kMost, "-1"},
      {"_operator.pow", 0, kMost, "0"},
      {"_operator.pow", 0, 0, "1"},
      {"_operator.pow", -2, 63, "-9223372036854775808"},
      {"_operator.pow", 2, 63, kOutside},
      {"_operator.pow", 3, 39, "4052555153018976267"},
      {"_operator.pow", 2, -2, "0.25"},
      {"_operator.pow",
       0,
       -1,
       "[Program] the graph computes 0 ** -1, which is not a real number"},
      {"_operator.lshift", 1, 1000, kOutside},
      {"_operator.lshift", 1, 63, kOutside},
      {"_operator.lshift", -1, 63, "-9223372036854775808"},
      {"_operator.lshift", 1, 62, "4611686018427387904"},
      {"_operator.lshift", 0, 1000, "0"},
      {"_operator.lshift", 3, -1, "[Program] the graph shifts by -1 bits"},
      {"_operator.rshift", -8, 1000, "-1"},
      {"_operator.rshift", 8, 1000, "0"},
      {"_operator.rshift", -7, 1, "-4"},
      {"_operator.and_", 6, 3, "2"},
      {"_operator.or_", 6, 3, "7"},
      {"_operator.truediv", 7, 2, "3.5"},
      {"torch.sym_max", 7, 9, "9"},
      {"torch.sym_min", 7, 9, "7"},
      {"_operator.eq", 7, 7, "True"},
      {"_operator.ne", 7, 7, "False"},
      {"_operator.lt", 7, 9, "True"},
      {"_operator.le", 9, 7, "False"},
      {"_operator.gt", 7, 9, "False"},
      {"_operator.ge", 9, 9, "True"},
  };
  for (const auto& [target, n, other, expected] : cases) {
    EXPECT_EQ(number_of(target, n, integer(other)), expected)
        << target << " " << n << " " << other;
  }
}

TEST(HostileGraph, ComputesFloatsAsPythonDoes) {
  const auto f = [](const std::string& text) {
    return R"({"as_float": )" + text + "}";
  };
  EXPECT_EQ(number_of("_operator.mod", -7, f("2.5")), "0.5");
  EXPECT_EQ(number_of("_operator.mod", 7, f("-2.5")), "-0.5");
  EXPECT_EQ(number_of("_operator.floordiv", -7, f("2.5")), "-3");
  EXPECT_EQ(number_of("_operator.floordiv", 1, f("0.1")), "9");
  EXPECT_EQ(
      number_of("_operator.pow", -8, f("0.5")),
      "[Program] the graph computes -8 ** 0.5, which is not a real number");
  EXPECT_EQ(number_of("_operator.add", 3, f("0.5")), "3.5");
  EXPECT_EQ(number_of("_operator.sub", 3, f("0.5")), "2.5");
  EXPECT_EQ(number_of("_operator.mul", 3, f("0.5")), "1.5");
  EXPECT_EQ(number_of("_operator.mod", -5, f("2.5")), "0");
  EXPECT_EQ(number_of("_operator.mod", 5, f("-2.5")), "-0");
  EXPECT_EQ(number_of("torch.sym_min", 3, f("2.5")), "2.5");
  EXPECT_EQ(number_of("_operator.gt", 3, f("2.5")), "True");
  EXPECT_EQ(number_of("_operator.eq", 3, f("3.5")), "False");
}

TEST(HostileGraph, ComputesWithBoolsAsPythonDoes) {
  const std::string yes = R"({"as_bool": true})";
  EXPECT_EQ(number_of("_operator.add", 3, yes), "4");
  EXPECT_EQ(number_of("_operator.truediv", 3, yes), "3");
  EXPECT_EQ(number_of("_operator.eq", 1, yes), "True");
  const auto function = [](const std::string& target,
                           const std::vector<std::string>& args) {
    std::vector<Given> given;
    for (const auto& arg : args) {
      given.emplace_back("a", arg);
    }
    return result_of_graph(
        graph({call(target, given, {number("m")})}, number("m")));
  };
  EXPECT_EQ(function("torch.sym_not", {yes}).toBool(), false);
  EXPECT_EQ(function("torch.sym_not", {integer(0)}).toBool(), true);
  EXPECT_EQ(
      function("torch.sym_ite", {yes, number("n"), integer(7)}).toInt(), 3);
  EXPECT_EQ(
      function("torch.sym_ite", {integer(0), number("n"), integer(7)}).toInt(),
      7);
  EXPECT_EQ(function("torch.sym_float", {yes}).toDouble(), 1);
  EXPECT_EQ(function("torch._sym_sqrt", {integer(9)}).toDouble(), 3);
}

TEST(HostileGraph, ReadsStridesAsPythonDoes) {
  const auto stride = [](int64_t dim) {
    return graph(
        {call(
            "torch.ops.aten.sym_stride.int",
            {{"self", tensor("x")}, {"dim", integer(dim)}},
            {number("m")})},
        number("m"));
  };
  EXPECT_EQ(result_of_graph(stride(0)).toInt(), 3);
  EXPECT_EQ(result_of_graph(stride(-1)).toInt(), 1);
  EXPECT_THAT(error_of_graph(stride(2)), HasSubstr("Dimension out of range"));
}

TEST(HostileGraph, RoundsToIntegersOf64Bits) {
  const auto rounded = [](const std::string& target, const std::string& value) {
    return error_of_calls(
        {call(
            target, {{"a", R"({"as_float": )" + value + "}"}}, {number("m")})},
        number("m"));
  };
  for (const auto* target :
       {"torch.sym_int",
        "math.ceil",
        "math.floor",
        "math.trunc",
        "builtins.round"}) {
    EXPECT_EQ(rounded(target, "9.2e18"), "");
    for (const auto* value :
         {"9.3e18", "-9.3e18", "1e300", R"("NaN")", R"("Infinity")"}) {
      EXPECT_THAT(rounded(target, value), StartsWith(kOutside))
          << target << " " << value;
    }
  }
  EXPECT_THAT(
      rounded("torch._sym_sqrt", "-1.0"),
      StartsWith("[Program] the graph takes the square root of -1."));
}

TEST(HostileGraph, RefusesToNegateTheLeastInteger) {
  EXPECT_THAT(
      error_of_calls(
          {call("_operator.neg", {{"a", number("n")}}, {number("m")})},
          number("m"),
          kLeast),
      StartsWith(kOutside));
}

// --- size --------------------------------------------------------------------

// A quadratic reader runs into the time limit of the suite.
TEST(HostileGraph, ManyWeightsAreReadInLinearTime) {
  constexpr int64_t kMany = 30000;
  const std::string meta =
      R"({"dtype": 7, "sizes": [{"as_int": 1}], "requires_grad": true, )"
      R"("device": {"type": "cpu"}, "strides": [{"as_int": 1}], )"
      R"("storage_offset": {"as_int": )";
  std::string inputs;
  std::string outputs;
  std::string tensors;
  std::string weights;
  for (int64_t i = 0; i < kMany; ++i) {
    const auto name = std::to_string(i);
    const auto about = meta + name + "}}";
    const auto arg = R"("arg": {"name": "p)" + name + R"("}, )";
    inputs += R"({"parameter": {)" + arg + R"("parameter_name": "w)" + name +
        R"("}}, )";
    outputs += R"({"parameter_mutation": {)" + arg + R"("parameter_name": "w)" +
        name + R"("}}, )";
    tensors += R"("p)" + name + R"(": )" + about + ", ";
    weights += (i == 0 ? R"("w)" : R"(, "w)") + name +
        R"(": {"path_name": "weight_0", "use_pickle": false, )" +
        R"("tensor_meta": )" + about + "}";
  }
  auto text = graph({relu("x", "y")});
  text = replaced(text, R"("input_specs": [)", R"("input_specs": [)" + inputs);
  text =
      replaced(text, R"("output_specs": [)", R"("output_specs": [)" + outputs);
  text = replaced(
      text, R"("tensor_values": {)", R"("tensor_values": {)" + tensors);
  const Folder folder;
  const auto path = write_program(
      folder / "m.pt2",
      text,
      {{"data/weights/model_weights_config.json",
        R"({"config": {)" + weights + "}}"},
       {"data/weights/weight_0", std::string(4 * kMany, '\0')}});
  EXPECT_EQ(load_program(path).parameters().size(), kMany);
}

// Calls that write the same memory share the list of its values.
TEST(HostileGraph, ManyWritesTakeLinearMemory) {
  constexpr int64_t kMany = 8000;
  std::vector<std::string> calls = {call(
      "torch.ops.aten.clone.default", {{"self", tensor("x")}}, {tensor("a0")})};
  for (int64_t i = 0; i < kMany; ++i) {
    calls.push_back(call(
        "torch.ops.aten.relu_.default",
        {{"self", tensor("a" + std::to_string(i))}},
        {tensor("a" + std::to_string(i + 1))}));
  }
  const auto graph_of_writes = detail::read_graph(
      graph(calls, tensor("a" + std::to_string(kMany))), {"m.pt2"});
  std::set<const std::vector<detail::Slot>*> lists;
  for (const auto& node : graph_of_writes.nodes) {
    for (const auto& shared : node.written) {
      lists.insert(shared.get());
    }
    for (const auto& own : node.in_place_args) {
      lists.insert(own.sharing.get());
    }
  }
  ASSERT_EQ(lists.size(), 1U);
  EXPECT_EQ((*lists.begin())->size(), kMany + 1U);
}

// --- texts -------------------------------------------------------------------

TEST(HostileGraph, ErrorsAreShort) {
  auto whole = graph(
      {relu("x", "z"),
       call(
           "_operator.add",
           {{"a", number("n")}, {"b", integer(2)}},
           {R"({"as_sym_int": {"as_name": "m"}})"}),
       call(
           "torch.ops.aten.cat.default",
           {{"tensors", R"({"as_tensors": [{"name": "z"}, {"name": "x"}]})"},
            {"dim", integer(1)}},
           {tensor("y")})});
  ASSERT_EQ(error_of_graph(whole), "");
  for (const auto& text : test_text::with_long_parts(whole)) {
    const auto error = error_of([&] {
      detail::read_graph(text, {"m.pt2", c10::kCPU, {}, "models/model.json"});
    });
    EXPECT_LE(error.size(), test_text::kLongestError) << error;
  }
}

// Errors of calls contain the names of a graph, too.
TEST(HostileGraph, ErrorsOfCallsAreShort) {
  const Folder folder;
  const auto text = graph({relu("x", "y")});
  for (const auto& changed : test_text::with_long_parts(text)) {
    const auto error = error_of([&] {
      auto program = load_program(write_program(folder / "m.pt2", changed));
      program.run({torch::ones({2, 3}), torch::ones({2, 3})});
    });
    EXPECT_LE(error.size(), test_text::kLongestError) << error;
    const auto other_error = error_of([&] {
      load_program(folder / "m.pt2").run({torch::ones({2, 3})});
    });
    EXPECT_LE(other_error.size(), test_text::kLongestError) << other_error;
  }
}

// --- records -----------------------------------------------------------------

TEST(HostileGraph, IsNotInflatedBeyondALimit) {
  const Folder folder;
  const auto path = folder / "m.pt2";
  write_archive(
      path,
      {{"models/model.json",
        "{" + std::string(size_t{64} << 20, ' ') + "}",
        true}});
  EXPECT_LT(std::filesystem::file_size(path), 1 << 20);
  EXPECT_THAT(
      error_of([&] { load_program(path); }),
      AllOf(
          StartsWith("[open_weights] " + path + ": "),
          HasSubstr("claims 67108866 uncompressed bytes")));
}

// Returns the error of reading that pickle as sample inputs. `storage` holds
// the bytes of storage "0".
std::string error_of_samples(
    const std::string& pickle,
    const std::string& storage = "",
    std::vector<Record> more = {}) {
  const Folder folder;
  const auto inner = folder / "archive.pt";
  more.push_back({"data.pkl", "\x80\x02" + pickle + "."});
  more.push_back({"data/0", storage});
  write_archive(inner, more);
  std::ifstream file(inner, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  const auto path = write_program(
      folder / "m.pt2",
      graph({relu("x", "y")}),
      {{"data/sample_inputs/model.pt", bytes}});
  const auto program = load_program(path);
  const auto error = none_is_empty(error_of([&] { program.sample_inputs(); }));
  EXPECT_THAT(error, AnyOf("", HasSubstr(path)));
  EXPECT_THAT(error, Not(HasSubstr("INTERNAL ASSERT")));
  return replaced(error, path, "FILE");
}

TEST(HostileSamples, AreBounded) {
  const std::string begin =
      "[Program] FILE: its sample inputs cannot be read: ";
  const std::string end = ". Pass your own inputs.";
  EXPECT_EQ(error_of_samples("]"), "");
  EXPECT_EQ(error_of_samples(repeated("](", 50) + repeated("e", 50)), "");
  const auto deep = begin + "its pickle has more than 100 nested levels" + end;
  constexpr size_t kMany = 200000;
  // Nests lists, tuples and dictionaries.
  EXPECT_EQ(
      error_of_samples(repeated("](", kMany) + "]" + repeated("e", kMany)),
      deep);
  EXPECT_EQ(
      error_of_samples(repeated("(", kMany) + "N" + repeated("t", kMany)),
      deep);
  EXPECT_EQ(
      error_of_samples(repeated("}(N", kMany) + "N" + repeated("u", kMany)),
      deep);
  EXPECT_EQ(error_of_samples(")" + repeated("\x85", kMany)), deep);
  // Builds the innermost list first. Each new list contains the previous list.
  EXPECT_EQ(
      error_of_samples(
          std::string("]q\0", 3) + repeated(std::string("]h\0aq\0", 6), kMany)),
      deep);
  EXPECT_EQ(
      error_of_samples(std::string("]q\0h\0a", 6)),
      begin + "an object of its pickle contains itself" + end);
  EXPECT_EQ(
      error_of_samples("]r\xff\xff\xff\xff"),
      begin + "its pickle has a memo index out of range: 4294967295" + end);
}

// Returns the pickle of a float tensor of one dimension in a storage of four
// elements.
std::string pickled_tensor(
    char offset,
    char size,
    char stride,
    const std::string& elements = "K\x04",
    const std::string& type = "ctorch\nFloatStorage\n") {
  using namespace std::string_literals;
  return "ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storage"s + type +
      "X\x01\0\0\0"
      "0X\x03\0\0\0cpu"s +
      elements + "tQK"s + offset + "K"s + size + "\x85K"s + stride +
      "\x85\x89"
      "ccollections\nOrderedDict\n)RtR"s;
}

TEST(HostileSamples, ArePickledAsTorchSaveDoes) {
  using namespace std::string_literals;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"(l", ""},
      {"(X\1\0\0\0aNd"s, ""},
      {"}X\1\0\0\0aNs"s, ""},
      {"\x01",
       "byte 2 of its pickle is opcode 1, which torch.save() does not write"},
      {"X\xff\xff\xff\xff", "its pickle ends early"},
      {"ctorch", "its pickle ends early"},
      {"a", "its pickle pops from an empty stack"},
      {"t", "its pickle pops from an empty stack"},
      {"](a", "its pickle pops from an empty stack"},
      {"h\x07", "its pickle reads an undefined memo index: 7"},
      {std::string(1000001, ')'), "its pickle has more than 1000000 objects"},
  };
  for (const auto& [pickle, why] : cases) {
    EXPECT_EQ(
        error_of_samples(pickle),
        why.empty() ? ""
                    : "[Program] FILE: its sample inputs cannot be read: " +
                why + ". Pass your own inputs.");
  }
}

TEST(HostileSamples, LieWithinTheirStorage) {
  const std::string storage(16, '\0');
  EXPECT_EQ(error_of_samples(pickled_tensor(0, 4, 1), storage), "");
  EXPECT_EQ(error_of_samples(pickled_tensor(3, 1, 9), storage), "");
  for (const auto& [offset, size, stride] :
       {std::array<char, 3>{0, 5, 1}, {1, 4, 1}, {0, 3, 2}}) {
    // Recent versions of LibTorch refuse them, too, with errors of their own.
    EXPECT_THAT(
        error_of_samples(pickled_tensor(offset, size, stride), storage),
        AllOf(HasSubstr("cannot be read: "), HasSubstr("torage")));
  }
}

// LibTorch's reader uses the number of elements in the pickle. A tensor with
// more elements than the record would read foreign memory.
TEST(HostileSamples, HaveTheSizeOfTheirRecords) {
  using namespace std::string_literals;
  const std::string storage(16, '\0');
  const auto error = [&](const std::string& elements) {
    return error_of_samples(pickled_tensor(0, 4, 1, elements), storage);
  };
  for (const auto& same : {"M\x04\0"s, "J\x04\0\0\0"s}) {
    EXPECT_EQ(error(same), "");
  }
  EXPECT_EQ(
      error("J\0\0\0\x10"s),
      "[Program] FILE: its sample inputs cannot be read: the record of storage "
      "0 has 16 bytes, but its pickle expects 268435456 elements of 4 bytes. "
      "Pass your own inputs.");
  for (const auto& other :
       {"K\x05"s,
        "K\x03"s,
        "M\x04\x01"s,
        "\x8a\x08\x04\0\0\0\0\0\0\x40"s, // 2^62 + 4 elements: 16 bytes
        "\x8a\x05\x04\0\0\0\x01"s}) {
    EXPECT_THAT(error(other), HasSubstr("has 16 bytes, but its pickle"));
  }
  for (const auto& other :
       {"J\xff\xff\xff\xff"s,
        "\x8a\x01\xff"s,
        "\x8a\x00"s,
        "\x8a\x09\x04\0\0\0\0\0\0\0\0"s,
        "N"s,
        "G\x40\x10\0\0\0\0\0\0"s,
        "X\x01\0\0\0\x04"s}) {
    EXPECT_THAT(error(other), HasSubstr("has a tensor without a storage"));
  }
  EXPECT_THAT(
      error_of_samples(
          pickled_tensor(0, 4, 1, "K\x04", "ctorch\nDoubleStorage\n"), storage),
      HasSubstr("expects 4 elements of 8 bytes"));
  // An integer is not a type, although LibTorch's reader accepts it as a type.
  EXPECT_THAT(
      error_of_samples(pickled_tensor(0, 4, 1, "K\x04", "K\x07"), storage),
      HasSubstr("has a tensor without a storage"));
}

TEST(HostileSamples, CallNoOtherFunctions) {
  using namespace std::string_literals;
  EXPECT_THAT(
      error_of_samples("ctorch.jit._pickle\nrestore_type_tag\n)R"),
      HasSubstr("contains an object of type "
                "torch.jit._pickle.restore_type_tag, which is not supported"));
  EXPECT_THAT(
      error_of_samples("(ccollections\nOrderedDict\nK\0)Rt"s),
      HasSubstr("calls an object that is not a function"));
  EXPECT_THAT(error_of_samples(")K\1a"s), HasSubstr("that is not a container"));
}

TEST(HostileSamples, AreNotInflatedBeyondTheirSize) {
  EXPECT_THAT(
      error_of_samples(
          "]", "", {{"data/1", std::string(size_t{1} << 20, '\0'), true}}),
      AllOf(
          StartsWith("[open_weights] FILE: the records of a nested archive are "
                     "larger than its "),
          HasSubstr(" bytes. ")));
}

TEST(HostileSamples, AreLittleEndian) {
  const std::string storage(16, '\0');
  const auto pickle = pickled_tensor(0, 4, 1);
  EXPECT_EQ(error_of_samples(pickle, storage, {{"byteorder", "little"}}), "");
  EXPECT_THAT(
      error_of_samples(pickle, storage, {{"byteorder", "big"}}),
      HasSubstr("FILE: its sample inputs have bytes in the order \"big\", but "
                "only little-endian files are supported"));
}

// Each tuple holds the previous tuple twice. A reader of all leaves would never
// finish.
TEST(HostileSamples, RepeatObjectsALimitedNumberOfTimes) {
  std::string pickle("]q\0", 3);
  for (int i = 0; i < 60; ++i) {
    pickle += {'h', static_cast<char>(i), '\x86', 'q'};
    pickle += static_cast<char>(i + 1);
  }
  EXPECT_THAT(
      error_of_samples(pickle),
      HasSubstr("its pickle repeats objects so often that they are more than "
                "its size allows"));
  EXPECT_EQ(error_of_samples(pickle.substr(0, 3 + 5 * 15)), "");
}

// A storage is copied for each tensor that uses it.
TEST(HostileSamples, ReadAStorageALimitedNumberOfTimes) {
  const std::string storage(1 << 20, '\0');
  const auto one = pickled_tensor(0, 4, 1, std::string("J\0\0\4\0", 5));
  EXPECT_EQ(error_of_samples("(" + repeated(one, 8) + "t", storage), "");
  EXPECT_THAT(
      error_of_samples("(" + repeated(one, 100) + "t", storage),
      HasSubstr("its pickle reads the same storages too often"));
}

} // namespace TEST_SOURCE
} // namespace dtensor
