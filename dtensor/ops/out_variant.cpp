// SPDX-License-Identifier: BSD-3-Clause
// op.out(..., out) is op(...) whose results are copied into `out`, in the
// layout that `out` has.
#include <dtensor/ops/variants_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/stack_impl.h>
#include <dtensor/tensor/meta_impl.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/ScalarType.h>

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

void check_can_cast(
    const std::string& name,
    const at::Tensor& out,
    const at::Tensor& result) {
  DTENSOR_CHECK(
      c10::canCast(result.scalar_type(), out.scalar_type()),
      name,
      "the result, ",
      *spec_of(result),
      ", cannot be converted to out, ",
      *spec_of(out),
      ". Pass an out of the dtype of the result.");
}

void copy_into(
    const std::string& name,
    const at::Tensor& out,
    const at::Tensor& result) {
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
  check_can_cast(name, out, result);
  at::Tensor target = out;
  target.copy_(result);
}

// A tensor on the meta device for a DTensor, others as they are.
at::Tensor meta_of_operand(const at::Tensor& t) {
  if (!is_dtensor(t)) {
    return t;
  }
  return at::empty_strided(
      t.sizes(), t.strides(), t.options().device(c10::kMeta));
}

// Some operators take an out of any dtype that the result can be converted to,
// others only one of the very dtype: the operator itself says which, on tensors
// without data.
void ask_for_dtype(
    const c10::OperatorHandle& op,
    const torch::jit::Stack& arguments,
    const torch::jit::Stack& outs,
    const torch::jit::Stack& results) {
  torch::jit::Stack stack(arguments);
  map_tensors(stack.data(), stack.size(), [](const at::Tensor& t, size_t) {
    return meta_of_operand(t);
  });
  try {
    op.callBoxed(&stack);
  } catch (const c10::NotImplementedError&) {
    // No meta kernel: copy_into() checks what is left.
  } catch (const c10::Error&) {
    for (size_t i = 0; i < outs.size(); ++i) {
      check_can_cast(
          op.schema().name(), outs[i].toTensor(), results[i].toTensor());
    }
    throw;
  }
}

// Sums and their kin compute in the dtype of out unless told otherwise. Returns
// whether this is one.
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

// Whether the DTensors among `outs` have other dtypes than the results.
bool differ_in_dtype(
    const torch::jit::Stack& outs,
    const torch::jit::Stack& results) {
  for (size_t i = 0; i < outs.size(); ++i) {
    const auto& out = outs[i].toTensor();
    if (is_dtensor(out) &&
        out.scalar_type() != results[i].toTensor().scalar_type()) {
      return true;
    }
  }
  return false;
}

torch::jit::Stack
call(const c10::OperatorHandle& op, torch::jit::Stack arguments) {
  op.callBoxed(&arguments);
  return arguments;
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
  const torch::jit::Stack all(
      stack->end() - static_cast<std::ptrdiff_t>(arguments.size()),
      stack->end());
  torch::jit::drop(*stack, arguments.size());
  auto results = call(functional, inputs);
  if (differ_in_dtype(outs, results)) {
    ask_for_dtype(op, all, outs, results);
    if (take_dtype_of_out(functional.schema(), outs[0].toTensor(), inputs)) {
      results = call(functional, std::move(inputs));
    }
  }
  for (size_t i = 0; i < outs.size(); ++i) {
    copy_into(op.schema().name(), outs[i].toTensor(), results[i].toTensor());
    stack->push_back(outs[i]);
  }
}

} // namespace dtensor::detail
