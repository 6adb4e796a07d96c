// SPDX-License-Identifier: BSD-3-Clause
// Every rule as text, in tests/golden/rules.txt. Operators with the same text
// on the same operands share a block with their names, the operands, the
// strategies of a mesh dimension, and notes. Calls on operands sharded in units
// follow. To accept a change run this test with DTENSOR_UPDATE_GOLDEN=1, and
// review the file.
#include "tests/ops/rule_calls.h"
#include "tests/torch_version.h"

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/install/fast_kernel_impl.h>
#include <dtensor/ops/path/op_info_impl.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/ops/propagate_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rule_text.h>
#include <dtensor/tensor/dtensor.h>
#include <dtensor/testing/fake_world.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>

namespace dtensor::testing {
namespace TEST_SOURCE {

using detail::OpInfo;
using detail::visit_tensors;

std::filesystem::path golden_file() {
  return std::filesystem::path(DTENSOR_TESTS_DIR) / "golden" / "rules.txt";
}

DeviceMesh mesh_of_two() {
  return parse_spec("f32[1] on (2): R").spec()->mesh();
}

// Returns the call with operands replicated over two ranks, in the form that
// rules receive.
OpCall op_call(const OpInfo& info, const torch::jit::Stack& arguments) {
  std::vector<OpInput> inputs;
  visit_tensors(arguments, [&](const at::Tensor& t, size_t arg, int item) {
    inputs.push_back(
        {Spec::make(
             mesh_of_two(),
             {Replicate()},
             Sizes(t.sizes().begin(), t.sizes().end()),
             t.scalar_type()),
         static_cast<int>(arg),
         item});
  });
  return {info.op.schema(), arguments, mesh_of_two(), std::move(inputs)};
}

std::string operand_text(const OpInput& input) {
  const auto text = to_string(*input.spec);
  return text.substr(0, text.find(" on "));
}

// Returns the operands as text: "f32[4, 8], f32[8, 6]".
std::string operands_text(const OpCall& call) {
  std::string text;
  for (const auto& input : call.inputs) {
    text += (text.empty() ? "" : ", ") + operand_text(input);
  }
  return text;
}

std::string notes_text(
    const std::string& name,
    std::vector<std::string> notes) {
  const auto op = parse_operator_name(name);
  if (detail::find_fast_op(op) != nullptr) {
    notes.emplace_back("unboxed");
  }
  std::string text;
  for (const auto& note : notes) {
    text += (text.empty() ? "  notes: " : ", ") + note;
  }
  return text.empty() ? "" : text + "\n";
}

at::Tensor
in_layout(const at::Tensor& t, const DeviceMesh& mesh, const Placement& p) {
  const auto spec = Spec::make(mesh, {p}, t.sizes(), t.scalar_type());
  const auto local = at::zeros(spec->local_sizes(), t.options());
  return DTensor::from_local(local.copy_(t.flatten()[0]), mesh, {p});
}

Placements layouts_of(const torch::jit::Stack& results) {
  Placements layouts;
  visit_tensors(results, [&](const at::Tensor& t, size_t, int) {
    layouts.push_back(is_dtensor(t) ? DTensor(t).placements()[0] : Replicate());
  });
  return layouts;
}

// Returns the layouts that a kernel gives for its first operand in layout `p`,
// with the others replicated. Values do not matter, so one rank is enough.
std::optional<Strategy>
run_kernel(const OpInfo& info, const PlainCall& plain, const Placement& p) {
  const auto mesh = init_device_mesh(at::kCPU, {2});
  auto stack = plain.arguments;
  Strategy strategy;
  try {
    detail::map_tensors(
        stack.data(), stack.size(), [&](const at::Tensor& t, size_t i) {
          strategy.inputs.push_back(i == 0 ? p : Placement(Replicate()));
          return at::Tensor(in_layout(t, mesh, strategy.inputs.back()));
        });
    info.op.callBoxed(&stack);
  } catch (const c10::Error&) {
    return std::nullopt;
  }
  strategy.outputs = layouts_of(stack);
  return strategy;
}

Strategies strategies_of_kernel(const OpInfo& info, const PlainCall& plain) {
  const torch::NoGradGuard no_grad;
  const auto ndim = op_call(info, plain.arguments).inputs[0].dim();
  std::vector<Placement> layouts;
  for (int64_t d = 0; d < ndim; ++d) {
    layouts.push_back(Shard(d));
  }
  for (const auto op :
       {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax}) {
    layouts.push_back(Partial(op));
  }
  Strategies strategies;
  with_fake_world(0, 2, [&] {
    for (const auto& layout : layouts) {
      if (auto strategy = run_kernel(info, plain, layout)) {
        strategies.push_back(std::move(*strategy));
      }
    }
  });
  return strategies;
}

std::string rule_text(const std::string& name) {
  const OpInfo info(
      *c10::Dispatcher::singleton().findSchema(parse_operator_name(name)));
  const auto plain = plain_call_of(info.op);
  auto call = op_call(info, plain.arguments);
  call.outputs = metas_of(plain.results);
  const auto strategies = info.rule->runs_kernel(plain.arguments)
      ? strategies_of_kernel(info, plain)
      : all_strategies(call, *info.rule);
  std::string text = "  of " + operands_text(call) + "\n";
  for (const auto& line : texts_of(strategies)) {
    text += "  " + line + "\n";
  }
  return text + notes_text(name, notes_of(*info.rule));
}

// Returns the names of this library's rules, without those of other tests and
// of operators that this LibTorch does not have.
std::vector<std::string> names_of_ours() {
  auto names = RuleRegistry::global().names();
  std::erase_if(names, [](const std::string& name) {
    return !name.starts_with("aten::") ||
        (name == "aten::cholesky" && !kHasCholesky);
  });
  return names;
}

// Blocks of names with the same text.
class Blocks {
 public:
  void add(const std::string& name, const std::string& text) {
    auto& names = by_text_[text];
    names.push_back(name.substr(std::string("aten::").size()));
  }
  std::string print() const {
    std::map<std::string, std::string> by_first_name;
    for (const auto& [text, names] : by_text_) {
      by_first_name[names[0]] = names_text(names) + text;
    }
    std::string all;
    for (const auto& [name, block] : by_first_name) {
      all += "\n" + block;
    }
    return all;
  }

 private:
  static std::string names_text(const std::vector<std::string>& names) {
    std::string text;
    size_t width = 0;
    for (const auto& name : names) {
      const bool breaks = width + name.size() + 2 > 80;
      text += width == 0 ? "" : breaks ? ",\n" : ", ";
      text += name;
      width = breaks ? name.size() : width + name.size() + 2;
    }
    return text + "\n";
  }

  std::map<std::string, std::vector<std::string>> by_text_;
};

// A call on operands that are sharded in units, with their layouts.
struct UnitCall {
  std::string name;
  std::vector<Sizes> operands;
  std::vector<Placements> layouts; // of the operands, one after the other
  std::function<at::Tensor(const std::vector<at::Tensor>&)> fn;
};

// Returns calls with nine query heads of 64 features, three per key head.
std::vector<UnitCall> calls_in_units() {
  const Placement heads = Shard(1, 64);
  const Placement groups = Shard(1, 192);
  return {
      {"view (heads)",
       {{4, 576}},
       {{heads}, {groups}, {StridedShard(1, 3, 64)}},
       [](const auto& t) {
         return t[0].view({4, 9, 64});
       }},
      {"view (features)",
       {{4, 9, 64}},
       {{Shard(1)}, {Shard(1, 3)}, {Shard(2)}},
       [](const auto& t) {
         return t[0].view({4, 576});
       }},
      {"transpose.int (heads)",
       {{4, 576}},
       {{heads}},
       [](const auto& t) { return t[0].transpose(0, 1); }},
      {"add.Tensor (heads)",
       {{4, 576}, {576}},
       {{heads, Shard(0, 64)}, {heads, Replicate()}},
       [](const auto& t) { return t[0] + t[1]; }},
      {"linear (heads)",
       {{4, 576}, {6, 576}},
       {{heads, heads}, {groups, groups}},
       [](const auto& t) { return at::linear(t[0], t[1]); }},
      {"linear (rows of heads)",
       {{4, 6}, {576, 6}},
       {{Replicate(), Shard(0, 64)}},
       [](const auto& t) { return at::linear(t[0], t[1]); }}};
}

std::string text_of(const UnitCall& call) {
  const auto mesh = init_device_mesh(at::kCPU, {2});
  std::string operands;
  for (const auto& sizes : call.operands) {
    operands += (operands.empty() ? "" : ", ") +
        c10::str("f32", at::IntArrayRef(sizes));
  }
  std::vector<std::string> lines;
  for (const auto& layouts : call.layouts) {
    std::vector<at::Tensor> given;
    for (size_t i = 0; i < layouts.size(); ++i) {
      const auto spec =
          Spec::make(mesh, {layouts[i]}, call.operands[i], at::kFloat);
      given.push_back(DTensor::from_local(
          at::ones(spec->local_sizes()),
          mesh,
          {layouts[i]},
          {.shape = std::vector<int64_t>(
               call.operands[i].begin(), call.operands[i].end())}));
    }
    const DTensor result(call.fn(given));
    lines.push_back(to_string(
        Strategy{.outputs = {result.placements()[0]}, .inputs = layouts}));
  }
  return call.name + "\n  of " + operands + "\n  " + c10::Join("\n  ", lines) +
      "\n";
}

std::string rules_of_units() {
  const torch::NoGradGuard no_grad;
  std::string all;
  with_fake_world(0, 2, [&] {
    for (const auto& call : calls_in_units()) {
      all += "\n" + text_of(call);
    }
  });
  return all;
}

std::string all_rules() {
  const auto& registry = RuleRegistry::global();
  Blocks blocks;
  for (const auto& name : names_of_ours()) {
    try {
      blocks.add(name, rule_text(name));
    } catch (const std::runtime_error& e) {
      ADD_FAILURE() << e.what();
    }
  }
  for (const auto& name : registry.names_of_traits()) {
    const auto& traits = *registry.find_traits(parse_operator_name(name));
    blocks.add(name, notes_text(name, notes_of(traits)));
  }
  for (const auto& name : registry.composite_names()) {
    blocks.add(name, "  notes: LibTorch's decomposition\n");
  }
  return "# What every operator's rule says; tests/ops/rules_test.cpp writes "
         "it.\n" +
      blocks.print() + rules_of_units();
}

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Removes the block of an operator that this LibTorch does not have.
std::string without_block(std::string text, const std::string& name) {
  const auto begin = text.find("\n\n" + name + "\n");
  const auto end = text.find("\n\n", begin + 1);
  return text.erase(begin, end - begin);
}

TEST(Rules, GoldenTexts) {
  const auto rules = all_rules();
  if (std::getenv("DTENSOR_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(golden_file()) << rules;
  }
  const auto golden = read(golden_file());
  EXPECT_EQ(rules, kHasCholesky ? golden : without_block(golden, "cholesky"))
      << golden_file();
}

std::string text_of(const std::vector<OutputMeta>& metas) {
  std::string text;
  for (const auto& meta : metas) {
    text += meta.defined ? c10::str(
                               short_name(meta.dtype),
                               at::IntArrayRef(meta.sizes),
                               at::IntArrayRef(meta.strides),
                               " ")
                         : "undefined ";
  }
  return text;
}

std::string shapes_wrongly_told(const OpInfo& info) {
  const auto plain = plain_call_of(info.op);
  const auto told = detail::infer_outputs(info, op_call(info, plain.arguments));
  const auto truth = text_of(metas_of(plain.results));
  return told && text_of(*told) == truth ? ""
                                         : info.name + ": " +
          (told ? text_of(*told) : "nothing ") + "instead of " + truth + "\n";
}

// The results have the shapes that a rule or LibTorch's meta kernel gives.
TEST(Rules, GiveTheShapesOfResults) {
  std::string wrong;
  for (const auto& name : names_of_ours()) {
    const OpInfo info(
        *c10::Dispatcher::singleton().findSchema(parse_operator_name(name)));
    if (info.rule->kernel) {
      continue;
    }
    try {
      wrong += shapes_wrongly_told(info);
    } catch (const std::runtime_error& e) {
      ADD_FAILURE() << e.what();
    }
  }
  // rnn_relu_cell uses relu, which has no meta kernel.
  EXPECT_EQ(
      wrong, "aten::rnn_relu_cell: nothing instead of f32[4, 5][5, 1] \n");
}

TEST(Rules, TextOfAStrategy) {
  EXPECT_EQ(
      to_string(
          Strategy{.outputs = {Partial()}, .inputs = {Shard(1), Shard(0)}}),
      "S(1) S(0) -> P(sum)");
  EXPECT_EQ(
      to_string(Strategy{.outputs = {}, .inputs = {Shard(1)}}),
      "S(1) -> nothing");
}

} // namespace TEST_SOURCE
} // namespace dtensor::testing
