// SPDX-License-Identifier: BSD-3-Clause
// Vector norms. Each rank computes the norm of its shard, and these norms
// combine like elements: norm(x) = norm(norm(x_1), norm(x_2), ...). Ranks sum
// powers of local norms, so the root is taken once, of the global sum.
#include <dtensor/error.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/reduction_impl.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>

#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace dtensor {
namespace {

using namespace detail;

struct Norm {
  double order = 2;
  Reduced over;
  at::ScalarType dtype = at::kFloat; // of the result
};

// Returns the reduction that combines the powers of the shards' norms.
ReduceOp combination(double order) {
  return !std::isinf(order) ? ReduceOp::kSum
      : order > 0           ? ReduceOp::kMax
                            : ReduceOp::kMin;
}

// Returns a dtype of at least float32, because sums of powers of halves would
// overflow.
at::ScalarType working_dtype(const Norm& norm, at::ScalarType input) {
  const auto wide = c10::promoteTypes(norm.dtype, at::kFloat);
  return at::isComplexType(input) ? c10::toComplexType(wide) : wide;
}

// Throws for a norm that is undefined for no elements. Only sums of powers are
// defined for no elements.
void check_defined(
    const std::string& where,
    const at::Tensor& self,
    const Norm& norm) {
  const bool is_sum = norm.order >= 0 && !std::isinf(norm.order);
  const bool empty =
      self.dim() > 0 && std::ranges::any_of(norm.over.dims, [&](int64_t d) {
        return self.size(d) == 0;
      });
  DTENSOR_CHECK(
      is_sum || !empty,
      "[{}] the norm of order {} over zero elements of {} is not defined. "
      "Reduce non-empty dimensions.",
      where,
      norm.order,
      *spec_of(self));
}

// Returns the norm of the local shard. LibTorch defines some norms only over
// elements; an empty shard then gets the identity of the combination.
at::Tensor local_norm(const at::Tensor& local, const Norm& norm) {
  const auto dtype = working_dtype(norm, local.scalar_type());
  const bool has_identity = norm.order >= 0 && !std::isinf(norm.order);
  if (local.numel() > 0 || has_identity) {
    return at::linalg_vector_norm(
        local, norm.order, norm.over.dims, norm.over.keepdim, dtype);
  }
  const double identity =
      norm.order > 0 ? 0.0 : std::numeric_limits<double>::infinity();
  return at::full(
      norm.over.result_sizes(local.sizes()),
      identity,
      local.options().dtype(c10::toRealValueType(dtype)));
}

bool is_power(double order) {
  return !std::isinf(order) && order != 0 && order != 1;
}

// Computes the global norm. Reduces a partial operand first, because no norm is
// linear. Shards of a reduced dimension give partial results, which ranks
// reduce. For a finite order, the partial results are powers.
at::Tensor
compute(const std::string& where, const at::Tensor& self, const Norm& norm) {
  const auto [local, spec] = redistributed(
      where, "self", self, without_partial(spec_of(self)->placements()));
  Placements partial(spec->placements());
  bool combines = false;
  for (auto& p : partial) {
    if (p.is_sharded()) {
      const bool over = norm.over.contains(p.dim());
      combines |= over;
      p = over ? Partial(combination(norm.order))
               : p.with_dim(norm.over.result_dim(p.dim()));
    }
  }
  const auto final_layout = without_partial(partial);
  const auto sizes = norm.over.result_sizes(spec->sizes());
  if (!spec->mesh().contains_this_rank()) {
    return wrap(
        local.new_empty({0}, norm.dtype),
        Spec::make(spec->mesh(), final_layout, sizes, norm.dtype));
  }
  auto value = local_norm(local, norm);
  if (combines) {
    const auto from =
        Spec::make(spec->mesh(), partial, sizes, value.scalar_type());
    const auto to = from->with_placements(final_layout);
    const bool power = is_power(norm.order);
    value = power ? value.pow(norm.order) : value;
    value = redistribute_local(value, from, to);
    value = power ? value.pow(1 / norm.order) : value;
  }
  return wrap(
      value.to(norm.dtype),
      Spec::make(spec->mesh(), final_layout, sizes, norm.dtype));
}

// Returns the norm of a call. The overloads have different arguments.
Norm norm_from_args(const KernelArgs& args, const at::Tensor& self) {
  const auto order = args.get(args.find("ord") >= 0 ? "ord" : "p");
  const auto dim = args.get("dim");
  const auto dtype = args.get("dtype");
  Norm norm;
  norm.order = order.isNone() ? 2.0 : order.toScalar().toDouble();
  auto& dims = norm.over.dims;
  dims = dim.isNone() ? std::vector<int64_t>{} : dim.toIntVector();
  if (dims.empty()) {
    for (int64_t d = 0; d < self.dim(); ++d) {
      dims.push_back(d);
    }
  }
  for (auto& d : dims) {
    d = c10::maybe_wrap_dim(d, self.dim());
  }
  std::ranges::sort(dims);
  norm.over.keepdim = args.find("keepdim") >= 0 && args.flag("keepdim");
  norm.dtype = c10::toRealValueType(
      dtype.isNone() ? self.scalar_type() : dtype.toScalarType());
  return norm;
}

void norm_kernel(KernelArgs& args) {
  const auto self = args.tensor("self");
  DTENSOR_CHECK(
      at::isFloatingType(self.scalar_type()) ||
          at::isComplexType(self.scalar_type()),
      "[{}] the norm of a tensor of {} is not defined. Cast it to a "
      "floating-point dtype.",
      args.base_name(),
      self.scalar_type());
  const auto norm = norm_from_args(args, self);
  check_defined(args.base_name(), self, norm);
  args.returns(compute(args.base_name(), self, norm));
}

} // namespace

DTENSOR_RULES(norm) {
  for (const auto* name :
       {"linalg_vector_norm",
        "norm.Scalar",
        "norm.ScalarOpt_dim",
        "norm.ScalarOpt_dim_dtype",
        "norm.ScalarOpt_dtype"}) {
    rules.kernel(name, with_args(norm_kernel));
  }
}

} // namespace dtensor
