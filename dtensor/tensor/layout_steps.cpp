// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/tensor/layout_steps_impl.h>

#include <ATen/ops/empty.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/gradient_impl.h>
#include <dtensor/tensor/memory_order_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>
#include <torch/csrc/autograd/variable.h>

namespace dtensor::detail {
namespace {

// True if the tensor or its storage has other references. A leaf adopts its
// gradient without a copy if the gradient tensor has no other reference.
// Autograd cannot check references to the memory behind a DTensor or a local
// tensor. Without this check, two leaves that were added could share the memory
// of their gradients, and clipping would scale it twice.
bool is_held_elsewhere(const at::Tensor& plain) {
  return plain.use_count() > 1 || plain.storage().use_count() > 1;
}

// True if the only other reference to the storage is the view's base. A
// differentiable view keeps its base alive.
bool is_held_by_base_alone(const at::Tensor& plain) {
  const auto* view = torch::autograd::impl::get_view_autograd_meta(plain);
  if (plain.use_count() > 1 || view == nullptr || !view->has_bw_view()) {
    return false;
  }
  const auto& base = view->get_backward_view().base_;
  return base.use_count() == 1 && base.is_alias_of(plain) &&
      plain.storage().use_count() == 2;
}

// Returns `grad` with unshared memory, so that a leaf can adopt it.
at::Tensor with_unshared_memory(at::Tensor grad) {
  if (!is_held_elsewhere(grad)) {
    return grad;
  }
  return is_held_by_base_alone(grad) && !records(grad) ? alias(grad, grad)
                                                       : grad.clone();
}

bool is_held_elsewhere_dtensor(const at::Tensor& dtensor) {
  const auto* impl = dtensor.unsafeGetTensorImpl();
  return dtensor.use_count() > 1 ||
      impl->get_backend_meta_intrusive_ptr().use_count() > 2 ||
      is_held_elsewhere(local_of(dtensor));
}

SpecPtr in_layout(const SpecPtr& spec, PlacementsRef placements) {
  return spec->placements() == placements ? spec
                                          : spec->with_placements(placements);
}

SpecPtr in_dtype(const SpecPtr& spec, at::ScalarType dtype) {
  return spec->dtype() == dtype ? spec : spec->with_dtype(dtype);
}

at::Tensor cast(at::Tensor t, at::ScalarType dtype) {
  return t.scalar_type() == dtype ? std::move(t) : t.to(dtype);
}

// Returns the local tensor, moved out of the DTensor if the caller holds the
// only reference. The caller may read the result in place only if no other
// reference can write to it.
// NOLINTNEXTLINE(performance-unnecessary-value-param): the caller gives it up.
at::Tensor take_local(at::Tensor dtensor) {
  static_cast<void>(local_of(dtensor)); // throws for a view that is out of date
  const auto* impl = dtensor.unsafeGetTensorImpl();
  const bool is_ours = dtensor.use_count() == 1 &&
      impl->get_backend_meta_intrusive_ptr().use_count() == 2;
  if (is_ours) {
    return std::move(meta_of(dtensor).local());
  }
  return local_of(dtensor);
}

} // namespace

at::Tensor wrap_counted(
    const at::Tensor& local,
    const SpecPtr& spec,
    const at::Tensor& counted) {
  auto result = wrap(local.requires_grad() ? alias(local, local) : local, spec);
  if (!counted.is_inference() && !result.is_inference()) {
    result.unsafeGetTensorImpl()->set_version_counter(
        counted.unsafeGetTensorImpl()->version_counter());
  }
  if (is_dtensor(counted)) {
    meta_of(result).view_facts = meta_of(counted).view_facts;
  }
  return result;
}

at::Tensor local_counted(const at::Tensor& dtensor) {
  const auto& local = local_of(dtensor);
  return dtensor.is_inference() || local.is_inference() ? local
                                                        : alias(local, dtensor);
}

at::Tensor cast_and_redistribute(const at::Tensor& dtensor, const SpecPtr& to) {
  bring_up_to_date(dtensor);
  const auto local = redistribute_local(
      cast(local_of(dtensor), to->dtype()),
      in_dtype(spec_of(dtensor), to->dtype()),
      to);
  if (!local.is_same(local_of(dtensor))) {
    return wrap(local, to);
  }
  return wrap_counted(local, to, dtensor); // nothing was communicated
}

at::Tensor cast_and_redistribute_async(at::Tensor dtensor, const SpecPtr& to) {
  bring_up_to_date(dtensor);
  const auto from = spec_of(dtensor);
  auto local = cast(take_local(std::move(dtensor)), to->dtype());
  const at::Tensor like = at::empty({0}, local.options());
  return wrap(
      redistribute_local_async(
          std::move(local), in_dtype(from, to->dtype()), to),
      to,
      like);
}

SpecPtr gradient_spec(const Spec& forward, PlacementsRef grad_placements) {
  return forward.with_tensor(
      grad_placements,
      forward.sizes(),
      dense_strides(forward.sizes(), forward.strides()));
}

at::Tensor FromLocalStep::backward(at::Tensor grad) const {
  if (!is_dtensor(grad)) {
    grad = gradient_as_dtensor(grad, *forward);
  }
  const bool copies = of_leaf && is_held_elsewhere_dtensor(grad);
  const auto& spec = spec_of(grad);
  const auto placed = spec->placements() == PlacementsRef(grad_layout)
      ? grad
      : redistribute_autograd(grad, spec->with_placements(grad_layout));
  const auto local = records(placed)
      ? to_local_autograd(placed, Placements(forward->placements()))
      : local_counted(placed);
  return copies ? local.clone() : local;
}

at::Tensor ToLocalStep::backward(at::Tensor grad) const {
  check_plain_gradient(grad);
  const auto spec = in_dtype(grad_spec, grad.scalar_type());
  if (spec->mesh().contains_this_rank()) {
    grad = in_memory_order(std::move(grad), spec->strides());
  }
  if (of_leaf) {
    grad = with_unshared_memory(std::move(grad));
  }
  return records(grad)
      ? from_local_autograd(grad, spec, Placements(forward->placements()))
      : wrap_counted(grad, spec, grad);
}

at::Tensor RedistributeStep::backward(at::Tensor grad) const {
  if (!is_dtensor(grad)) {
    grad = gradient_as_dtensor(grad, *from);
  }
  const auto target = in_dtype(
      in_layout(spec_of(grad), without_partial(from->placements())),
      grad_dtype);
  return cast(
      redistribute_autograd(std::move(grad), target, {.async_op = async_op}),
      from->dtype());
}

} // namespace dtensor::detail
