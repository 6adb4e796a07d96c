// SPDX-License-Identifier: BSD-3-Clause
// op.out(..., out) is op(...) whose results are copied into `out`, in the
// layout that `out` has.
#include <dtensor/ops/variants_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/meta_impl.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/copy.h>

#include <map>
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

bool is_out(const c10::Argument& argument) {
  return argument.is_out();
}

// The arguments of `out_schema` without the outs are those of `schema`.
bool computes_same(
    const c10::FunctionSchema& out_schema,
    const c10::FunctionSchema& schema) {
  size_t i = 0;
  const auto& arguments = schema.arguments();
  for (const auto& argument : out_schema.arguments()) {
    if (is_out(argument)) {
      continue;
    }
    if (i == arguments.size() || arguments[i].name() != argument.name() ||
        *arguments[i].type() != *argument.type() || is_out(arguments[i]) ||
        arguments[i].alias_info() != nullptr) {
      return false;
    }
    ++i;
  }
  return i == arguments.size();
}

void copy_into(
    const std::string& name,
    const at::Tensor& out,
    const at::Tensor& result) {
  DTENSOR_CHECK(
      is_dtensor(result),
      name,
      "out is ",
      *spec_of(out),
      ", the operands are plain tensors. Make them DTensors, or pass a plain "
      "out.");
  DTENSOR_CHECK(
      is_dtensor(out),
      name,
      "out is a plain tensor, the result ",
      *spec_of(result),
      ". Pass a DTensor as out.");
  DTENSOR_CHECK(
      out.sizes() == result.sizes(),
      name,
      "out cannot be resized: it is ",
      *spec_of(out),
      ", the result ",
      *spec_of(result),
      ". Pass an out of the shape of the result.");
  at::Tensor target = out;
  target.copy_(result);
}

} // namespace

std::optional<c10::OperatorHandle> functional_of_out(
    const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  const auto it = overloads().find(schema.name());
  if (it == overloads().end()) {
    return std::nullopt;
  }
  for (const auto& other : it->second) {
    if (computes_same(schema, other.schema())) {
      return other;
    }
  }
  return std::nullopt;
}

void run_out_variant(
    const c10::OperatorHandle& op,
    const c10::OperatorHandle& functional,
    torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto base = stack->size() - arguments.size();
  torch::jit::Stack inputs;
  torch::jit::Stack outs;
  for (size_t i = 0; i < arguments.size(); ++i) {
    (is_out(arguments[i]) ? outs : inputs).push_back((*stack)[base + i]);
  }
  torch::jit::drop(*stack, arguments.size());
  functional.callBoxed(&inputs);
  for (size_t i = 0; i < outs.size(); ++i) {
    copy_into(op.schema().name(), outs[i].toTensor(), inputs[i].toTensor());
    stack->push_back(outs[i]);
  }
}

} // namespace dtensor::detail
