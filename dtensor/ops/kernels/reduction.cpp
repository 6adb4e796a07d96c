// SPDX-License-Identifier: BSD-3-Clause
// Reductions of empty shards, means, and variances over sharded dimensions.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/error.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/batch_norm_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/kernels/over_shards_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

namespace dtensor {
namespace {

using namespace detail;

// Returns the maximum over no elements: the value with which an empty shard
// does not affect the result.
at::Scalar least(at::ScalarType dtype) {
  if (at::isFloatingType(dtype)) {
    return -std::numeric_limits<double>::infinity();
  }
  return least_integer(dtype);
}

at::Scalar greatest(at::ScalarType dtype) {
  if (at::isFloatingType(dtype)) {
    return std::numeric_limits<double>::infinity();
  }
  return greatest_integer(dtype);
}

// Runs a reduction. The operator has no value for an empty shard, so each
// result is the identity of the following reduction.
void on_some(
    KernelArgs& args,
    const Decision& decision,
    std::initializer_list<at::Scalar (*)(at::ScalarType)> identities) {
  const auto self = args.tensor("self");
  if (self.numel() > 0) {
    return args.run_operator();
  }
  args.returns();
  for (const auto identity : identities) {
    args.stack().emplace_back(at::full(
        decision.outputs[0]->local_sizes(),
        identity(self.scalar_type()),
        self.options()));
  }
}

// Converts each term of a partial sum. at::_to_copy() would add the terms
// first.
at::Tensor convert_terms(const at::Tensor& t, at::ScalarType dtype) {
  return is_dtensor(t)
      ? wrap(local_of(t).to(dtype), spec_of(t)->with_dtype(dtype))
      : t.to(dtype);
}

// Computes the mean as the sum divided by the global number of elements. On
// CPUs the plain operator does the same. The plain operator also adds 16-bit
// numbers in 32 bits, because the sum may overflow even if Half can represent
// the mean.
void mean_kernel(KernelArgs& args) {
  const auto self = args.tensor("self");
  const auto dims = args.get("dim").toOptional<std::vector<int64_t>>();
  const bool keepdim = args.get("keepdim").toOptional<bool>().value_or(false);
  const auto dtype = args.at("dtype").toOptional<at::ScalarType>();
  const auto out_dtype = dtype.value_or(self.scalar_type());
  DTENSOR_CHECK(
      at::isFloatingType(out_dtype) || at::isComplexType(out_dtype),
      "[aten::mean] the mean of a tensor of {} is not defined. Pass a "
      "floating-point dtype.",
      out_dtype);
  const auto sum_dtype = accumulation_dtype(out_dtype);
  const auto total = at::sum(
      self,
      dims ? at::OptionalArrayRef<int64_t>(*dims) : std::nullopt,
      keepdim,
      sum_dtype);
  const auto count = static_cast<double>(self.numel()) /
      static_cast<double>(std::max<int64_t>(total.numel(), 1));
  const auto mean =
      total.div(total.numel() == 0 ? at::Scalar(1.0) : at::Scalar(count));
  args.returns(sum_dtype == out_dtype ? mean : convert_terms(mean, out_dtype));
}

} // namespace

void detail::greatest_local(KernelArgs& args, const Decision& decision) {
  on_some(args, decision, {least});
}

void detail::least_local(KernelArgs& args, const Decision& decision) {
  on_some(args, decision, {greatest});
}

void detail::aminmax_local(KernelArgs& args, const Decision& decision) {
  on_some(args, decision, {greatest, least});
}

// Variances over sharded dimensions.

namespace {

// Returns three numbers of each sample: its size, its mean, and the sum of
// squared distances from the mean. Without `dims`, all elements are one sample.
at::Tensor moments(const at::Tensor& t, at::IntArrayRef dims) {
  const auto total = at::sum(t, dims, /*keepdim=*/true);
  const auto size = t.numel() / std::max<int64_t>(total.numel(), 1);
  const auto mean = total / std::max<int64_t>(size, 1);
  return at::stack(
      {at::full_like(mean, size),
       mean,
       at::sum((t - mean).square(), dims, /*keepdim=*/true)});
}

} // namespace

void detail::variance_local(KernelArgs& args, const Decision& decision) {
  const auto self = args.tensor("self");
  if (self.is_meta()) {
    return args.run_operator();
  }
  const auto& mesh = decision.inputs[0]->mesh();
  auto found = moments(
      self.to(accumulation_dtype(self.scalar_type())),
      args.is_none("dim") ? std::vector<int64_t>{}
                          : args.at("dim").toIntVector());
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    const auto i = static_cast<size_t>(m);
    if (decision.inputs[0]->placements()[i].is_sharded() &&
        !decision.outputs[0]->placements()[i].is_sharded()) {
      found = combined_moments(
          get_group(mesh, m).all_gather(found.unsqueeze(0), 0));
    }
  }
  const auto correction =
      args.is_none("correction") ? 1.0 : args.real("correction");
  const std::string name = args.base_name();
  const auto variance = found[2] / (found[0] - correction).clamp_min(0);
  const auto result_of = [&](const at::Tensor& t) {
    return t.to(self.scalar_type()).reshape(decision.outputs[0]->local_sizes());
  };
  const auto result =
      result_of(name.starts_with("aten::std") ? variance.sqrt() : variance);
  if (name.ends_with("_mean")) {
    args.returns(result, result_of(found[1]));
  } else {
    args.returns(result);
  }
}

DTENSOR_RULES(mean) {
  rules.kernel("mean", with_args(mean_kernel));
  rules.kernel("mean.dim", with_args(mean_kernel));
}

} // namespace dtensor

namespace dtensor::detail {

// Runs the operator on one element instead of none, so that all ranks check the
// arguments and record the same autograd graph.
void quantile_local(KernelArgs& args, const Decision& decision) {
  const auto local = args.tensor("self");
  if (local.numel() > 0) {
    return args.run_operator();
  }
  auto sizes = local.sizes().vec();
  std::ranges::replace(sizes, int64_t{0}, int64_t{1});
  args.set("self", local.sum().expand(sizes));
  args.returns(args.compute().sum().expand(decision.outputs[0]->local_sizes()));
}

} // namespace dtensor::detail
