// SPDX-License-Identifier: BSD-3-Clause
// Functional variants: operators that compute the tensors that op_(...) and
// op.out(...) write. Also the execution of op_(...) by op(...).
#include <dtensor/ops/variants/variants_impl.h>

#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/ops/scopes/on_missing_rule_impl.h>
#include <dtensor/ops/scopes/replicated_impl.h>
#include <dtensor/tensor/is_dtensor.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/copy.h>
#include <c10/core/ScalarType.h>

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

} // namespace dtensor::detail
