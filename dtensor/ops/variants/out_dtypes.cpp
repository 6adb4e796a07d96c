// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/variants/out_dtypes_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/ops/propagate_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/tensor_replacement_impl.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <c10/core/ScalarType.h>

#include <algorithm>

namespace dtensor::detail {
namespace {

// Returns a tensor of ones on the CPU, with at most two elements along each
// dimension.
at::Tensor few_ones(const at::Tensor& t) {
  Sizes sizes(t.sizes().begin(), t.sizes().end());
  for (auto& size : sizes) {
    size = std::min<int64_t>(size, 2);
  }
  return at::ones(sizes, at::TensorOptions().dtype(t.scalar_type()));
}

// Calls the operator on few_ones(), with outs of the dtypes of `results`, or of
// the given outs if `results` is empty. The call draws from its own generator.
void call_on_ones(
    const c10::OperatorHandle& op,
    torch::jit::Stack arguments,
    const std::vector<at::Tensor>& results) {
  const auto& schema = op.schema();
  size_t out = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    map_tensors(&arguments[i], 1, [&](const at::Tensor& t, size_t) {
      if (schema.arguments()[i].is_out()) {
        const auto& like = results.empty() ? t : results[out++];
        return at::empty({0}, at::TensorOptions().dtype(like.scalar_type()));
      }
      return is_dtensor(t) ? few_ones(t) : t;
    });
  }
  if (const auto generator = schema.argumentIndexWithName("generator")) {
    arguments[static_cast<size_t>(*generator)] =
        at::detail::createCPUGenerator();
  }
  op.callBoxed(&arguments);
}

bool works_on_ones(
    const c10::OperatorHandle& op,
    const torch::jit::Stack& arguments,
    const std::vector<at::Tensor>& results) {
  try {
    call_on_ones(op, arguments, results);
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

} // namespace

void check_can_cast(
    const std::string& name,
    const at::Tensor& out,
    const at::Tensor& result) {
  DTENSOR_CHECK(
      c10::canCast(result.scalar_type(), out.scalar_type()),
      "[{}] the result, {}, cannot be converted to out, {}. Pass an out of the "
      "dtype of the result.",
      name,
      *spec_of(result),
      *spec_of(out));
}

void ask_for_dtype(
    const c10::OperatorHandle& op,
    const torch::jit::Stack& arguments,
    const std::vector<at::Tensor>& outs,
    const std::vector<at::Tensor>& results) {
  const WithoutModes without_modes;
  torch::jit::Stack stack(arguments);
  map_tensors(stack.data(), stack.size(), [](const at::Tensor& t, size_t) {
    return is_dtensor(t) ? empty_twin(t, c10::kMeta) : t;
  });
  try {
    op.callBoxed(&stack);
  } catch (const c10::NotImplementedError&) {
    // no meta kernel
  } catch (const c10::Error&) {
    for (size_t i = 0; i < outs.size(); ++i) {
      check_can_cast(op.schema().name(), outs[i], results[i]);
    }
    throw;
  }
  if (!works_on_ones(op, arguments, {}) &&
      works_on_ones(op, arguments, results)) {
    call_on_ones(op, arguments, {}); // throws
  }
}

} // namespace dtensor::detail
