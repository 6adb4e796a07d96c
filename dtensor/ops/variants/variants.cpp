// SPDX-License-Identifier: BSD-3-Clause
// Variants of op(...): op_(...) copies its result into the first argument, and
// op.out(..., out) copies its results into `out`, in the layout of `out`. If
// LibTorch has no such op and the inputs are replicated, every rank computes
// the full `out` and then copies its local shard.
#include <dtensor/ops/variants/variants_impl.h>

#include <dtensor/comm/group/owner_impl.h>
#include <dtensor/comm/rank_generator_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/ops/scopes/replicated_impl.h>
#include <dtensor/ops/variants/out_dtypes_impl.h>
#include <dtensor/ops/variants/view_result_impl.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/copy.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace dtensor::detail {
namespace {

using Overloads = std::map<std::string, std::vector<c10::OperatorHandle>>;

const Overloads& overloads() {
  static const Overloads by_name = [] {
    Overloads all;
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const auto& name : dispatcher.getAllOpNames()) {
      if (auto op = dispatcher.findSchema(name)) {
        all[name.name].push_back(*op);
      }
    }
    return all;
  }();
  return by_name;
}

// Returns true if `variant` takes the arguments of `schema` plus outs, and
// `schema` writes none.
bool computes_same(
    const c10::FunctionSchema& variant,
    const c10::FunctionSchema& schema) {
  size_t i = 0;
  const auto& arguments = schema.arguments();
  for (const auto& argument : variant.arguments()) {
    if (argument.is_out()) {
      continue;
    }
    if (i == arguments.size() || arguments[i].name() != argument.name() ||
        *arguments[i].type() != *argument.type() || arguments[i].is_out() ||
        arguments[i].alias_info() != nullptr) {
      return false;
    }
    ++i;
  }
  return i == arguments.size();
}

std::optional<c10::OperatorHandle> functional_of(
    const c10::FunctionSchema& variant,
    const std::string& name) {
  const auto it = overloads().find(name);
  if (it == overloads().end()) { // registered later, or not an operator
    auto op = c10::Dispatcher::singleton().findSchema(
        {name, variant.overload_name()});
    return op && computes_same(variant, op->schema()) ? op : std::nullopt;
  }
  for (const auto& other : it->second) {
    if (computes_same(variant, other.schema())) {
      return other;
    }
  }
  return std::nullopt;
}

} // namespace

std::optional<c10::OperatorHandle> functional_of_out(
    const c10::OperatorHandle& op) {
  return functional_of(op.schema(), op.schema().name());
}

std::optional<c10::OperatorHandle> functional_of_in_place(
    const c10::OperatorHandle& op) {
  const auto& name = op.schema().name();
  return name.back() == '_'
      ? functional_of(op.schema(), name.substr(0, name.size() - 1))
      : std::nullopt;
}

bool run_in_place_variant(
    const OpInfo& info,
    const c10::OperatorHandle& functional,
    torch::jit::Stack* stack) {
  const auto args = last_args(*stack, info.num_args);
  auto self = args[0].toTensor();
  if (!is_dtensor(self) ||
      (info.rule == nullptr && !runs_replicated(info, args) &&
       !uses_replicated_fallback(info, args))) {
    return false;
  }
  torch::jit::Stack results = args.vec();
  results[0] = self.clone(); // a formula may save op's result
  functional.callBoxed(&results);
  const auto& result = results[0].toTensor();
  if (!is_dtensor(result) || result.sizes() != self.sizes() ||
      !c10::canCast(result.scalar_type(), self.scalar_type())) {
    return false;
  }
  self.copy_(result);
  torch::jit::drop(*stack, info.num_args);
  stack->emplace_back(std::move(self));
  return true;
}

namespace {

// Resizes `out` as the plain operator does, in the memory order of the result.
// Tensors that share memory with `out` still share it afterwards.
void give_size_of(const at::Tensor& result, const at::Tensor& out) {
  const auto& old = *spec_of(out);
  auto local = at::alias(local_of(out));
  if (old.mesh().contains_this_rank()) {
    local.resize_(result.sizes()).as_strided_(result.sizes(), result.strides());
  }
  auto spec = Spec::make(
      old.mesh(),
      old.placements(),
      result.sizes(),
      result.strides(),
      old.dtype());
  rewrap(out, std::move(local), std::move(spec));
}

void check_out(
    const std::string& name,
    const at::Tensor& out,
    const at::Tensor& result) {
  DTENSOR_CHECK(
      is_dtensor(result),
      "[{}] out is {}, but the operands are plain tensors. Make them DTensors, "
      "or pass a plain out.",
      name,
      *spec_of(out));
  if (const auto* scope = current_decomposition();
      scope != nullptr && !is_dtensor(out)) {
    scope->refuse(name, "writes a plain tensor created inside the operator");
  }
  DTENSOR_CHECK(
      is_dtensor(out),
      "[{}] out is a plain tensor, but the result is {}. Pass a DTensor as "
      "out.",
      name,
      *spec_of(result));
  check_can_write_through(name, out);
  DTENSOR_CHECK(
      out.sizes() == result.sizes() || spec_of(out)->is_replicated(),
      "[{}] out cannot be resized: it is {}, but the result is {}. Pass an out "
      "of the shape of the result.",
      name,
      *spec_of(out),
      *spec_of(result));
}

// Passes the dtype of out as the argument "dtype" to sums and similar
// operators, which compute in the dtype of out by default. Returns true for
// such an operator.
bool take_dtype_of_out(
    const c10::FunctionSchema& functional,
    const at::Tensor& out,
    torch::jit::Stack& inputs) {
  const auto dtype = functional.argumentIndexWithName("dtype");
  if (!dtype || !inputs[static_cast<size_t>(*dtype)].isNone()) {
    return false;
  }
  inputs[static_cast<size_t>(*dtype)] = out.scalar_type();
  return true;
}

// Returns true if the DTensors among `outs` have other dtypes than the results.
bool differ_in_dtype(
    const std::vector<at::Tensor>& outs,
    const std::vector<at::Tensor>& results) {
  return !std::ranges::equal(
      outs, results, [](const at::Tensor& out, const at::Tensor& result) {
        return !is_dtensor(out) || out.scalar_type() == result.scalar_type();
      });
}

torch::jit::Stack call(
    const c10::OperatorHandle& op,
    torch::jit::Stack arguments) {
  op.callBoxed(&arguments);
  return arguments;
}

void check_outs(
    const c10::OperatorHandle& op,
    const std::vector<at::Tensor>& results,
    const std::vector<at::Tensor>& outs) {
  DTENSOR_CHECK_VALUE(
      outs.size() == results.size(),
      "[{}] got {} for {}. Pass one for each result.",
      op.schema().name(),
      pluralize(outs.size(), "out tensor"),
      pluralize(results.size(), "result"));
  for (size_t i = 0; i < outs.size(); ++i) {
    check_out(op.schema().name(), outs[i], results[i]);
  }
}

void copy_all(
    const c10::OperatorHandle& op,
    const std::vector<at::Tensor>& results,
    const std::vector<at::Tensor>& outs) {
  for (size_t i = 0; i < outs.size(); ++i) {
    check_can_cast(op.schema().name(), outs[i], results[i]);
    if (outs[i].sizes() != results[i].sizes()) {
      give_size_of(results[i], outs[i]);
    }
    outs[i].copy_(results[i]);
  }
}

} // namespace

void run_out_variant(
    const c10::OperatorHandle& op,
    const c10::OperatorHandle& functional,
    torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto all = last_args(*stack, arguments.size()).vec();
  torch::jit::drop(*stack, arguments.size());
  torch::jit::Stack inputs;
  torch::jit::Stack outs;
  for (size_t i = 0; i < arguments.size(); ++i) {
    (arguments[i].is_out() ? outs : inputs).push_back(all[i]);
  }
  const auto targets = tensors_in(outs);
  auto results = tensors_in(call(functional, inputs));
  check_outs(op, results, targets);
  if (differ_in_dtype(targets, results)) {
    ask_for_dtype(op, all, targets, results);
    if (take_dtype_of_out(functional.schema(), targets[0], inputs)) {
      results = tensors_in(call(functional, std::move(inputs)));
    }
  }
  copy_all(op, results, targets);
  if (!op.schema().returns().empty()) {
    stack->insert(stack->end(), outs.begin(), outs.end());
  }
}

bool inputs_are_replicated(
    const c10::FunctionSchema& schema,
    c10::ArrayRef<c10::IValue> args) {
  bool all = true;
  visit_tensors(args, [&](const at::Tensor& t, size_t arg, int) {
    all &= schema.arguments()[arg].is_out() ? is_dtensor(t)
        : is_dtensor(t)                     ? spec_of(t)->is_replicated()
                                            : t.numel() == 1;
  });
  return all;
}

void run_out_on_replicated(const OpInfo& info, torch::jit::Stack* stack) {
  const auto& arguments = info.op.schema().arguments();
  const auto args = last_args(*stack, info.num_args).vec();
  torch::jit::drop(*stack, info.num_args);
  torch::jit::Stack local(args);
  torch::jit::Stack outs;
  std::vector<at::Tensor> results;
  SpecPtr like;
  for (size_t i = 0; i < args.size(); ++i) {
    const bool out = arguments[i].is_out();
    if (out) {
      outs.push_back(args[i]);
    }
    map_tensors(&local[i], 1, [&](const at::Tensor& t, size_t) {
      if (is_dtensor(t)) {
        like = spec_of(t);
        check_owned_by_this_rank(info.name, *like);
      }
      const auto& part = is_dtensor(t) ? local_of(t) : t;
      return out ? results.emplace_back(part.new_empty({0})) : part;
    });
  }
  if (like->mesh().contains_this_rank()) {
    const RequireEqualOnAllRanks no_draws(info.name);
    info.op.callBoxed(&local);
    for (auto& t : results) {
      t = wrap(t, replicated_spec(*like, t));
    }
    const auto targets = tensors_in(outs);
    check_outs(info.op, results, targets);
    copy_all(info.op, results, targets);
  }
  if (!info.op.schema().returns().empty()) {
    stack->insert(stack->end(), outs.begin(), outs.end());
  }
}

} // namespace dtensor::detail
