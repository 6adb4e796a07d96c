// SPDX-License-Identifier: BSD-3-Clause
// Calls every operator with a rule on meta DTensors. The results have the same
// layouts, sizes, strides and dtypes as with data, and the same calls are
// refused.
#include "tests/ops/rule_calls.h"

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/ranks.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/path/op_info_impl.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/tensor/dtensor.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>

namespace dtensor::testing {
namespace TEST_SOURCE {

using detail::map_tensors;
using detail::visit_tensors;
using torch::jit::Stack;

std::optional<c10::OperatorHandle> find(const std::string& name) {
  return c10::Dispatcher::singleton().findSchema(parse_operator_name(name));
}

// Returns all operators with a rule, and their in-place forms.
std::vector<c10::OperatorHandle> all_operators() {
  std::set<std::string> names;
  for (const auto& name : RuleRegistry::global().names()) {
    if (name.starts_with("aten::")) {
      const auto dot = std::min(name.find('.'), name.size());
      names.insert({name, name.substr(0, dot) + "_" + name.substr(dot)});
    }
  }
  std::vector<c10::OperatorHandle> all;
  for (const auto& name : names) {
    if (const auto op = find(name)) {
      all.push_back(*op);
    }
  }
  return all;
}

Stack mapped(Stack stack, const auto& map) {
  map_tensors(stack.data(), stack.size(), map);
  return stack;
}

at::Tensor without_data(const at::Tensor& t) {
  return at::empty_strided(
      t.sizes(), t.strides(), t.options().device(at::kMeta));
}

// Returns true if LibTorch has the operator for meta tensors.
bool takes_plain_meta(const c10::OperatorHandle& op, const Stack& arguments) {
  auto stack = mapped(
      arguments, [](const at::Tensor& t, size_t) { return without_data(t); });
  try {
    op.callBoxed(&stack);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

std::string text_of(const at::Tensor& t, bool has_data) {
  EXPECT_EQ(t.is_meta(), !has_data);
  if (!is_dtensor(t)) {
    return c10::str("plain ", t.sizes(), t.strides(), t.scalar_type(), "; ");
  }
  const auto spec = DTensor(t).spec();
  const auto local = DTensor(t).to_local();
  EXPECT_EQ(local.is_meta(), !has_data);
  return c10::str(
      to_string(*spec),
      t.strides(),
      t.scalar_type(),
      " of which ",
      local.sizes(),
      local.strides(),
      local.scalar_type(),
      "; ");
}

// Returns the results as text; "refused" if the call throws.
std::string
result_of(const c10::OperatorHandle& op, Stack stack, bool has_data) {
  try {
    op.callBoxed(&stack);
  } catch (const c10::Error&) {
    return "refused";
  }
  std::string text;
  visit_tensors(stack, [&](const at::Tensor& t, size_t, int) {
    text += text_of(t, has_data);
  });
  return text;
}

// Layout of each operand.
using Layouts = std::vector<Placements>;

at::Tensor
placed(const at::Tensor& t, const DeviceMesh& mesh, const Placements& layout) {
  const auto spec = Spec::make(mesh, layout, t.sizes(), t.scalar_type());
  auto local =
      at::zeros(spec->local_sizes(), t.options()).copy_(t.flatten()[0]);
  if (t.is_floating_point()) {
    local.div_(mesh.size()); // a sum of probabilities stays a probability
  }
  return DTensor::from_local(
      local,
      mesh,
      layout,
      {.shape = t.sizes().vec(), .stride = t.strides().vec()});
}

at::Tensor described(const at::Tensor& with_data) {
  const DTensor d(with_data);
  return DTensor::from_local(
      without_data(d.to_local()),
      d.device_mesh(),
      {d.placements().begin(), d.placements().end()},
      {.shape = d.sizes().vec(), .stride = d.strides().vec()});
}

std::string text_of(const c10::OperatorHandle& op, const Layouts& layouts) {
  auto text = toString(op.operator_name());
  for (const auto& layout : layouts) {
    text += " | " + to_string(PlacementsRef(layout));
  }
  return text;
}

// Returns the difference between the two results. Empty if they are equal, or
// if the operands cannot have these layouts.
std::string difference(
    const c10::OperatorHandle& op,
    const Stack& arguments,
    const DeviceMesh& mesh,
    const Layouts& layouts) {
  Stack real;
  try {
    real = mapped(arguments, [&](const at::Tensor& t, size_t i) {
      return placed(t, mesh, layouts[i]);
    });
  } catch (const c10::Error&) {
    return "";
  }
  const auto meta =
      mapped(real, [](const at::Tensor& t, size_t) { return described(t); });
  const auto truth = result_of(op, real, true);
  const auto mine = result_of(op, meta, false);
  return mine == truth
      ? ""
      : text_of(op, layouts) + "\n  " + mine + "\n  instead of\n  " + truth;
}

bool can_reduce(ReduceOp op, at::ScalarType dtype) {
  switch (op) {
    case ReduceOp::kSum:
      return dtype != at::kBool;
    case ReduceOp::kAvg:
      return c10::isFloatingType(dtype) || c10::isComplexType(dtype);
    default:
      return dtype != at::kBool && !c10::isComplexType(dtype);
  }
}

bool fits(const Placements& layout, const at::Tensor& t) {
  return std::all_of(layout.begin(), layout.end(), [&](const Placement& p) {
    return (!p.is_sharded() || p.dim() < t.dim()) &&
        (!p.is_partial() || can_reduce(p.reduce_op(), t.scalar_type()));
  });
}

// Returns layouts in which one operand after the other has `layout`. In the
// last, all operands have it.
std::vector<Layouts> layouts_with(
    const Placements& layout,
    const std::vector<at::Tensor>& operands) {
  const Placements whole(layout.size(), Replicate());
  const Layouts none(operands.size(), whole);
  std::vector<Layouts> all;
  auto together = none;
  size_t those = 0;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (fits(layout, operands[i])) {
      all.push_back(none);
      all.back()[i] = together[i] = layout;
      ++those;
    }
  }
  if (those > 1) {
    all.push_back(together);
  }
  return all;
}

struct Tally {
  std::mutex mutex;
  int64_t alike = 0;
  std::set<std::string> operators;
  std::set<std::string> wrong;
};

// Compares the calls on each rank of the mesh.
void compare(
    const c10::OperatorHandle& op,
    const DeviceMesh& mesh,
    const std::vector<Placements>& kinds,
    Tally& tally) {
  Stack arguments;
  try {
    arguments = plain_call_of(op).arguments;
  } catch (const std::runtime_error&) {
    return; // of an in-place operator
  }
  if (!takes_plain_meta(op, arguments)) {
    return;
  }
  const auto operands = detail::tensors_in(arguments);
  for (const auto& kind : kinds) {
    for (const auto& layouts : layouts_with(kind, operands)) {
      const auto wrong = difference(op, arguments, mesh, layouts);
      const std::lock_guard lock(tally.mutex);
      tally.alike += wrong.empty() ? 1 : 0;
      tally.operators.insert(toString(op.operator_name()));
      if (!wrong.empty()) {
        tally.wrong.insert(wrong);
      }
    }
  }
}

void expect_alike(
    const std::vector<int64_t>& shape,
    const std::vector<Placements>& kinds,
    size_t operators) {
  Tally tally;
  run_ranks(c10::multiply_integers(shape), [&] {
    const torch::NoGradGuard no_grad;
    const auto mesh = init_device_mesh(at::kCPU, shape);
    for (const auto& op : all_operators()) {
      compare(op, mesh, kinds, tally);
    }
  });
  for (const auto& wrong : tally.wrong) {
    ADD_FAILURE() << wrong;
  }
  EXPECT_GE(tally.operators.size(), operators);
  std::cout << tally.operators.size() << " operators, " << tally.alike
            << " calls alike\n";
}

const Placement kSum = Partial(ReduceOp::kSum);

TEST(SlowMetaRules, MatchRulesWithDataOnOneMeshDim) {
  expect_alike(
      {2},
      {{Replicate()},
       {Shard(0)},
       {Shard(1)},
       {Shard(2)},
       {Shard(0, 3)},
       {Shard(1, 4)},
       {StridedShard(0, 2)},
       {kSum},
       {Partial(ReduceOp::kAvg)},
       {Partial(ReduceOp::kMax)}},
      500);
}

TEST(SlowMetaRulesOnTwoByTwo, MatchRulesWithData) {
  expect_alike(
      {2, 2},
      {{Shard(0), Replicate()},
       {Shard(0), Shard(1)},
       {Shard(1), Shard(1)},
       {Shard(0, 3), Shard(1, 4)},
       {Shard(1), kSum},
       {kSum, kSum}},
      500);
}

} // namespace TEST_SOURCE
} // namespace dtensor::testing
