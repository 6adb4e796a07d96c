// SPDX-License-Identifier: BSD-3-Clause
// Every pointwise operator, in every layout of its operands, in forward and
// backward pass, in place and with out, gives the plain operator's result on
// full tensors.
#include <ATen/core/dispatch/Dispatcher.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/pointwise_names_impl.h>
#include <gtest/gtest.h>
#include <tests/ops/operands.h>

#include <algorithm>

namespace dtensor::testing {
namespace TEST_SOURCE {

using torch::jit::Stack;

const std::vector<Placement> kLayouts = {
    Shard(0),
    Shard(1),
    Replicate(),
    Partial()};

// Operators that LibTorch decomposes, and operators of several classes.
const std::vector<std::string> kOthers = {
    "__xor__.Scalar",
    "__xor__.Tensor",
    "add.Scalar",
    "add.Tensor",
    "addcdiv",
    "addcmul",
    "clamp_max.Tensor",
    "clamp_min.Tensor",
    "clip",
    "clip.Tensor",
    "clone",
    "conj_physical",
    "fill.Scalar",
    "float_power.Scalar",
    "float_power.Tensor_Scalar",
    "float_power.Tensor_Tensor",
    "frexp.Tensor",
    "hardswish",
    "isclose",
    "isfinite",
    "log_sigmoid",
    "log_sigmoid_backward",
    "logit",
    "masked_fill.Scalar",
    "masked_fill.Tensor",
    "max.other",
    "maximum",
    "min.other",
    "minimum",
    "mul.Tensor",
    "mvlgamma",
    "nan_to_num",
    "neg",
    "positive",
    "prelu",
    "relu6",
    "rsub.Scalar",
    "rsub.Tensor",
    "selu",
    "square",
    "sub.Scalar",
    "sub.Tensor",
    "tril",
    "triu",
    "true_divide.Tensor",
    "where.self",
    "zero"};
// clang-format on

struct Op {
  explicit Op(const std::string& op_name)
      : name(op_name),
        handle(c10::Dispatcher::singleton().findSchemaOrThrow(
            parse_operator_name(op_name).name.c_str(),
            parse_operator_name(op_name).overload_name.c_str())) {}
  std::string name;
  c10::OperatorHandle handle;
};

bool is_tensor(const c10::Argument& a) {
  return a.type()->isSubtypeOf(
      *c10::OptionalType::create(c10::TensorType::get()));
}

size_t tensor_count(const Op& op) {
  const auto& arguments = op.handle.schema().arguments();
  return static_cast<size_t>(
      std::count_if(arguments.begin(), arguments.end(), is_tensor));
}

c10::IValue number(const c10::Argument& a, bool ints) {
  if (a.default_value() && !a.default_value()->isNone()) {
    return *a.default_value();
  }
  const auto type = a.type()->str();
  if (type == "Scalar" || type == "number" || type == "Scalar?" ||
      type == "number?") {
    return ints ? c10::IValue(2) : c10::IValue(0.375);
  }
  if (type == "int") {
    return 2;
  }
  if (type == "float") {
    return 0.375;
  }
  if (type == "bool") {
    return false;
  }
  return {};
}

Stack stack_of(
    const Op& op,
    const std::vector<at::Tensor>& operands,
    bool ints) {
  Stack stack;
  size_t next = 0;
  for (const auto& a : op.handle.schema().arguments()) {
    if (is_tensor(a)) {
      stack.emplace_back(operands[next++]);
    } else {
      stack.push_back(number(a, ints));
    }
  }
  return stack;
}

at::Tensor
call(const Op& op, const std::vector<at::Tensor>& operands, bool ints) {
  auto stack = stack_of(op, operands, ints);
  op.handle.callBoxed(stack);
  return stack[0].toTensor();
}

// Operands of one operator: full tensors, and a flag for integers.
struct Case {
  std::vector<at::Tensor> operands;
  bool ints = false;
};

at::Tensor operand(const Op& op, size_t i, at::IntArrayRef sizes, bool ints) {
  size_t tensor = 0;
  for (const auto& a : op.handle.schema().arguments()) {
    if (is_tensor(a) && tensor++ == i &&
        (a.name() == "mask" || a.name() == "condition")) {
      return small_ints(sizes, i) > 3;
    }
  }
  return ints ? small_ints(sizes, i) : uniform(sizes, i);
}

std::optional<Case> make_case(const Op& op, at::IntArrayRef sizes) {
  for (const bool ints : {false, true}) {
    Case c{{}, ints};
    for (size_t i = 0; i < tensor_count(op); ++i) {
      c.operands.push_back(operand(op, i, sizes, ints));
    }
    if (op.name == "masked_fill.Tensor" || op.name == "prelu") {
      c.operands.back() = c.operands.back().flatten()[0];
    }
    try {
      call(op, c.operands, ints);
      return c;
    } catch (const std::exception&) {
    }
  }
  return std::nullopt;
}

std::vector<std::string> swept_names() {
  std::vector<std::string> names = kOthers;
  const auto add = [&](c10::ArrayRef<detail::PointwiseName> list) {
    for (const auto& op : list) {
      names.emplace_back(op.name);
    }
  };
  add(detail::kPointwise);
  add(detail::kLinearInFirst);
  add(detail::kBlends);
  add(detail::kNonDecreasing);
  // Takes complex numbers only; see ComplexNumbers.
  std::erase(names, "_conj");
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

std::string layouts_text(const std::vector<Placement>& layouts) {
  std::string text;
  for (const auto& p : layouts) {
    text += " " + to_string(p);
  }
  return text;
}

// Returns all combinations of layouts of two operands. Further operands are
// replicated or have the layout of the second operand. With `few`, the second
// operand is replicated or has the layout of the first.
std::vector<std::vector<Placement>> combinations(size_t operands, bool few) {
  std::vector<std::vector<Placement>> all = {{}};
  for (size_t i = 0; i < operands; ++i) {
    std::vector<std::vector<Placement>> longer;
    for (const auto& head : all) {
      for (const auto& p : kLayouts) {
        const bool any = i == 0 || (i == 1 && !few);
        if (any || p == head[std::min<size_t>(i - 1, 1)] || p.is_replicate()) {
          longer.push_back(head);
          longer.back().push_back(p);
        }
      }
    }
    all = std::move(longer);
  }
  return all;
}

std::vector<at::Tensor> place_all(
    const Case& c,
    const DeviceMesh& mesh,
    const std::vector<Placement>& layouts,
    bool requires_grad) {
  std::vector<at::Tensor> placed;
  for (size_t i = 0; i < c.operands.size(); ++i) {
    const auto& t = c.operands[i];
    auto p = layouts[i];
    if ((p.is_sharded() && p.dim() >= t.dim()) ||
        (p.is_partial() && t.scalar_type() == at::kBool)) {
      p = Replicate();
    }
    placed.push_back(place(t, mesh, p).detach());
    placed.back().set_requires_grad(
        requires_grad && at::isFloatingType(t.scalar_type()));
  }
  return placed;
}

std::vector<at::Tensor> gradients(
    const at::Tensor& result,
    const std::vector<at::Tensor>& operands) {
  std::vector<at::Tensor> leaves;
  for (const auto& t : operands) {
    if (t.requires_grad()) {
      leaves.push_back(t);
    }
  }
  auto seed = uniform(result.sizes(), 99);
  if (is_dtensor(result)) {
    const DTensor d(result);
    const auto p = d.placements()[0];
    seed = place(seed, d.device_mesh(), p.is_partial() ? Replicate() : p);
  }
  return torch::autograd::grad({result}, leaves, {seed}, true, false, true);
}

struct Expected {
  at::Tensor result;
  std::vector<at::Tensor> grads;
};

Expected plain(const Op& op, const Case& c) {
  Expected expected{call(op, c.operands, c.ints), {}};
  auto operands = c.operands;
  try {
    for (auto& t : operands) {
      t = t.detach();
      t.set_requires_grad(at::isFloatingType(t.scalar_type()));
    }
    const auto result = call(op, operands, c.ints);
    if (result.requires_grad()) {
      expected.grads = gradients(result, operands);
    }
  } catch (const std::exception&) {
    // not differentiable: only the result is compared
  }
  return expected;
}

void check_forward_backward(
    const Op& op,
    const Case& c,
    const Expected& expected,
    const DeviceMesh& mesh,
    const std::vector<Placement>& layouts,
    Failures& failures) {
  const auto operands = place_all(c, mesh, layouts, !expected.grads.empty());
  const auto result = call(op, operands, c.ints);
  if (!close(full(result.detach()), expected.result)) {
    failures.add(op.name + layouts_text(layouts) + ": forward differs");
  }
  if (expected.grads.empty()) {
    return;
  }
  const auto grads = gradients(result, operands);
  for (size_t i = 0; i < grads.size(); ++i) {
    const auto& wanted = expected.grads[i];
    if (grads[i].defined() != wanted.defined() ||
        (wanted.defined() && !close(full(grads[i]), wanted))) {
      failures.add(
          op.name + layouts_text(layouts) + ": gradient " + std::to_string(i) +
          " differs");
    }
  }
}

std::optional<Op> in_place_of(const Op& op) {
  const auto name = parse_operator_name(op.name);
  const auto found = c10::Dispatcher::singleton().findSchema(
      {name.name + "_", name.overload_name});
  return found
      ? std::optional<Op>(
            name.name.substr(6) + "_" +
            (name.overload_name.empty() ? "" : ".") + name.overload_name)
      : std::nullopt;
}

void check_in_place(
    const Op& op,
    const Case& c,
    const DeviceMesh& mesh,
    const std::vector<Placement>& layouts,
    Failures& failures) {
  auto copies = c.operands;
  copies[0] = copies[0].clone();
  at::Tensor expected;
  try {
    expected = call(op, copies, c.ints);
  } catch (const std::exception&) {
    return; // the result has another dtype
  }
  auto operands = place_all(c, mesh, layouts, false);
  operands[0] = operands[0].clone();
  const Placements before{DTensor(operands.front()).placements()};
  try {
    const auto result = call(op, operands, c.ints);
    if (!result.is_same(operands[0]) || !close(full(result), expected) ||
        DTensor(result).placements() != PlacementsRef(before)) {
      failures.add(op.name + layouts_text(layouts) + ": in place differs");
    }
  } catch (const std::exception& e) {
    const bool refused =
        first_line(e).find("would change the layout") != std::string::npos;
    if (!refused || !before[0].is_partial()) {
      failures.add(op.name + layouts_text(layouts) + ": " + first_line(e));
    }
  }
}

void check_out(
    const Op& op,
    const Case& c,
    const Expected& expected,
    const DeviceMesh& mesh,
    Failures& failures) {
  const auto base = parse_operator_name(op.name).name;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto found = name.name == base
        ? c10::Dispatcher::singleton().findSchema(name)
        : std::nullopt;
    if (!found || !found->schema().arguments().back().is_out() ||
        found->schema().returns().size() != 1) {
      continue;
    }
    const auto& arguments = found->schema().arguments();
    const auto& own = op.handle.schema().arguments();
    bool same = arguments.size() == own.size() + 1;
    for (size_t i = 0; same && i < own.size(); ++i) {
      same = *arguments[i].type() == *own[i].type();
    }
    if (!same) {
      continue;
    }
    const std::vector<Placement> layouts(c.operands.size(), Shard(0));
    auto stack = stack_of(op, place_all(c, mesh, layouts, false), c.ints);
    const auto out =
        place(at::zeros_like(expected.result), mesh, Shard(1)).clone();
    stack.emplace_back(out);
    found->callBoxed(stack);
    if (!close(full(out), expected.result)) {
      failures.add(op.name + "." + name.overload_name + ": out differs");
    }
  }
}

bool writes_first(const Op& op) {
  const auto* alias = op.handle.schema().arguments()[0].alias_info();
  return alias != nullptr && alias->isWrite();
}

void sweep(const Op& op, at::IntArrayRef sizes, Failures& failures) {
  const auto mesh = init_device_mesh(at::kCPU, {get_world_size()});
  const auto c = make_case(op, sizes);
  if (!c) {
    failures.add(op.name + ": the plain operator takes neither kind");
    return;
  }
  if (writes_first(op)) {
    for (const auto& layouts : combinations(c->operands.size(), false)) {
      check_in_place(op, *c, mesh, layouts, failures);
    }
    return;
  }
  const auto expected = plain(op, *c);
  const auto in_place = in_place_of(op);
  const bool few = op.name.rfind("special_", 0) == 0;
  for (const auto& layouts : combinations(c->operands.size(), few)) {
    try {
      check_forward_backward(op, *c, expected, mesh, layouts, failures);
    } catch (const std::exception& e) {
      failures.add(op.name + layouts_text(layouts) + ": " + first_line(e));
    }
    if (in_place) {
      check_in_place(*in_place, *c, mesh, layouts, failures);
    }
  }
  if (op.name == "log_sigmoid") {
    return; // its out variant makes its own plain buffer
  }
  try {
    check_out(op, *c, expected, mesh, failures);
  } catch (const std::exception& e) {
    failures.add(op.name + " out: " + first_line(e));
  }
}

void sweep_all(int64_t ranks, at::IntArrayRef sizes) {
  Failures failures;
  run_ranks(ranks, [&] {
    for (const auto& name : swept_names()) {
      sweep(Op(name), sizes, failures);
    }
  });
  EXPECT_EQ(failures.text(), "");
}

TEST(SlowPointwise, EveryOperatorInEveryLayoutOnTwoRanks) {
  sweep_all(2, {5, 3});
}

TEST(SlowPointwise, EveryOperatorInEveryLayoutOnThreeRanksWithEmptyShards) {
  sweep_all(3, {1, 4});
}

} // namespace TEST_SOURCE
} // namespace dtensor::testing
