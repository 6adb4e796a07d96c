// SPDX-License-Identifier: BSD-3-Clause
// Reductions of empty shards, and means.
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <dtensor/error.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/dtype_limits_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <limits>

namespace dtensor {
namespace {

using detail::KernelArgs;

// Returns the max over no elements, the value with which an empty shard does
// not affect the result.
at::Scalar least(at::ScalarType dtype) {
  if (at::isFloatingType(dtype)) {
    return -std::numeric_limits<double>::infinity();
  }
  switch (dtype) {
    case at::kBool:
    case at::kByte:
      return 0;
    case at::kChar:
      return std::numeric_limits<int8_t>::lowest();
    case at::kShort:
      return std::numeric_limits<int16_t>::lowest();
    case at::kInt:
      return std::numeric_limits<int32_t>::lowest();
    default:
      return std::numeric_limits<int64_t>::lowest();
  }
}

at::Scalar greatest(at::ScalarType dtype) {
  if (at::isFloatingType(dtype)) {
    return std::numeric_limits<double>::infinity();
  }
  return detail::greatest_integer(dtype);
}

// Runs a reduction. The operator has no value for an empty shard, so the result
// is the identity of the following reduction.
void on_some(
    KernelArgs& args,
    const Decision& decision,
    at::Scalar (*identity)(at::ScalarType)) {
  const auto self = args.tensor("self");
  if (self.numel() > 0) {
    args.run_operator();
    return;
  }
  args.returns(at::full(
      decision.outputs[0]->local_sizes(),
      identity(self.scalar_type()),
      self.options()));
}

// Computes the mean as the sum divided by the global number of elements. On
// CPUs the plain operator does the same.
void mean_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto dtype = torch::jit::pop(*stack).toOptional<at::ScalarType>();
  at::OptionalArrayRef<int64_t> dims;
  bool keepdim = false;
  std::vector<int64_t> dim_list;
  if (op.schema().arguments().size() > 2) {
    keepdim = torch::jit::pop(*stack).toBool();
    const auto dim = torch::jit::pop(*stack);
    if (!dim.isNone()) {
      dim_list = dim.toIntVector();
      dims = dim_list;
    }
  }
  const auto self = torch::jit::pop(*stack).toTensor();
  const auto out_dtype = dtype.value_or(self.scalar_type());
  DTENSOR_CHECK(
      at::isFloatingType(out_dtype) || at::isComplexType(out_dtype),
      "[aten::mean] the mean of a tensor of {} is not defined. Pass a "
      "floating-point dtype.",
      out_dtype);
  const auto total = at::sum(self, dims, keepdim, dtype);
  const auto count = static_cast<double>(self.numel()) /
      static_cast<double>(std::max<int64_t>(total.numel(), 1));
  stack->emplace_back(
      total.div(total.numel() == 0 ? at::Scalar(1.0) : at::Scalar(count)));
}

} // namespace

void detail::greatest_local(KernelArgs& args, const Decision& decision) {
  on_some(args, decision, least);
}

void detail::least_local(KernelArgs& args, const Decision& decision) {
  on_some(args, decision, greatest);
}

DTENSOR_RULES(mean) {
  rules.kernel("mean", mean_kernel);
  rules.kernel("mean.dim", mean_kernel);
}

} // namespace dtensor

namespace dtensor::detail {

// Runs the operator on an element in place of none, so that all ranks check the
// arguments and record the same autograd graph.
void quantile_local(KernelArgs& args, const Decision& decision) {
  const auto local = args.tensor("self");
  if (local.numel() > 0) {
    args.run_operator();
    return;
  }
  auto sizes = local.sizes().vec();
  std::ranges::replace(sizes, int64_t{0}, int64_t{1});
  args.set("self", local.sum().expand(sizes));
  args.run_operator();
  const auto result = torch::jit::pop(args.stack()).toTensor();
  args.stack().emplace_back(
      result.sum().expand(decision.outputs[0]->local_sizes()));
}

} // namespace dtensor::detail
