// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/data_parallel/local_gradient_impl.h>

#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/gradient_impl.h>
#include <dtensor/tensor/meta_impl.h>

namespace dtensor::detail {
namespace {

bool is_term_of(const Spec& grad, const Spec& unsharded) {
  return grad.mesh().ndim() == 1 && unsharded.placements()[0].is_replicate() &&
      grad.placements()[0].is_partial(ReduceOp::kSum);
}

} // namespace

LocalGradient local_gradient(
    const at::Tensor& grad,
    const SpecPtr& unsharded,
    at::ScalarType dtype) {
  if (!grad.defined()) {
    return {};
  }
  if (unsharded == nullptr) {
    check_plain_gradient(grad);
    return {grad};
  }
  const auto distributed = gradient_as_dtensor(grad, *unsharded);
  const auto& given = spec_of(distributed);
  if (is_term_of(*given, *unsharded)) {
    return {local_of(distributed), /*is_partial_sum_term=*/true};
  }
  const auto summed = given->has_partial()
      ? c10::promoteTypes(given->dtype(), dtype)
      : given->dtype();
  return {redistribute_local(
      local_of(distributed).to(summed),
      given->with_dtype(summed),
      unsharded->with_dtype(summed))};
}

SpecPtr gradient_layout(const SpecPtr& spec, bool is_partial_sum_term) {
  if (!is_partial_sum_term) {
    return spec;
  }
  Placements placements(spec->placements().begin(), spec->placements().end());
  placements.back() = Partial(ReduceOp::kSum);
  return spec->with_placements(placements);
}

} // namespace dtensor::detail
