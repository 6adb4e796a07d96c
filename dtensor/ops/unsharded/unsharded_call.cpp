// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/unsharded/unsharded_source_impl.h>

#include <dtensor/ops/path/stack_impl.h>

#include <utility>

namespace dtensor::detail {
namespace {

at::Tensor cast_operand(const at::Tensor& t, at::ScalarType dtype) {
  return at::isFloatingType(t.scalar_type()) && t.scalar_type() != dtype
      ? t.to(dtype)
      : t;
}

// Casts all operands except those that come from a source.
void cast_operands(
    const c10::FunctionSchema& schema,
    c10::IValue* args,
    const std::vector<bool>& has_unsharded,
    at::ScalarType dtype) {
  size_t index = 0;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const bool is_read = !is_written(schema.arguments()[i]);
    map_tensors(args + i, 1, [&](const at::Tensor& t, size_t) {
      const bool unsharded = has_unsharded[index++];
      return is_read && !unsharded ? cast_operand(t, dtype) : t;
    });
  }
}

} // namespace

UnshardedOperands::~UnshardedOperands() {
  for (const auto& source : taken_) {
    source->give_back({});
  }
}

at::Tensor UnshardedOperands::take_unsharded(
    const std::shared_ptr<UnshardedSource>& source) {
  auto value = source->take_unsharded();
  taken_.push_back(source);
  return value;
}

void UnshardedOperands::give_back(at::TensorList results) {
  for (const auto& source : std::exchange(taken_, {})) {
    source->give_back(results);
  }
}

std::optional<at::ScalarType> UnshardedOperands::operand_dtype() const {
  for (const auto& source : taken_) {
    if (const auto dtype = source->operand_dtype()) {
      return dtype;
    }
  }
  return std::nullopt;
}

void call_with_unsharded(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto num_args = schema.arguments().size();
  auto* args = mutable_args(stack, num_args);
  UnshardedOperands unsharded;
  std::vector<bool> has_unsharded;
  map_tensors(args, num_args, [&](const at::Tensor& t, size_t) {
    const auto source = source_if_held(t);
    has_unsharded.push_back(source != nullptr);
    return source != nullptr ? unsharded.take_unsharded(source) : t;
  });
  if (const auto dtype = unsharded.operand_dtype()) {
    cast_operands(schema, args, has_unsharded, *dtype);
  }
  op.callBoxed(stack);
  unsharded.give_back(tensors_in(last_args(*stack, schema.returns().size())));
}

} // namespace dtensor::detail
