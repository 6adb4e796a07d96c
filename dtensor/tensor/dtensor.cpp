// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/tensor/dtensor.h>

#include <ATen/core/Formatting.h>
#include <dtensor/comm/group/owner_impl.h>
#include <dtensor/comm/rank/plain_draws_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/redistribute/plan.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/gradient_impl.h>
#include <dtensor/tensor/layout_steps_impl.h>
#include <dtensor/tensor/memory_order_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>

#include <ostream>

namespace dtensor {
namespace {

[[noreturn]] void refuse_plain(const at::Tensor& t) {
  DTENSOR_THROW_TYPE(
      "[DTensor] the tensor is {}. Make it a DTensor with distribute_tensor or "
      "from_local.",
      t.defined() ? "plain" : "undefined");
}

inline const detail::DTensorMeta& checked_meta(const at::Tensor& t) {
  if (C10_UNLIKELY(!is_dtensor(t))) {
    refuse_plain(t);
  }
  return detail::meta_of(t);
}

// Returns the layout of a redistributed tensor. A copy of an expanded tensor
// has memory for each element.
SpecPtr redistributed_spec(
    const SpecPtr& from,
    PlacementsRef placements,
    at::ScalarType dtype) {
  const auto to =
      from->with_placements(placements, "redistribute")->with_dtype(dtype);
  const bool copies = detail::is_expanded(from->sizes(), from->strides()) &&
      (dtype != from->dtype() ||
       !plan(from->with_dtype(dtype), to)->steps.empty());
  return copies ? to->with_tensor(
                      to->placements(),
                      from->sizes(),
                      dense_strides(from->sizes(), from->strides()))
                : to;
}

} // namespace

DTensor::DTensor(at::Tensor t) : at::Tensor(std::move(t)) {
  checked_meta(*this);
}

DTensor::DTensor(
    const at::Tensor& local,
    const SpecPtr& spec,
    bool requires_grad) {
  constexpr const char* kWhere = "DTensor";
  DTENSOR_CHECK_VALUE(
      spec != nullptr, "[{}] the spec is null. Use Spec::make.", kWhere);
  detail::check_owned_by_this_rank(kWhere, *spec);
  detail::check_dense(kWhere, local);
  DTENSOR_CHECK_TYPE(
      !is_dtensor(local) && local.scalar_type() == spec->dtype(),
      "[{}] the local tensor is {}, but the spec is {}. Pass a plain tensor of "
      "that dtype.",
      kWhere,
      is_dtensor(local) ? "a DTensor" : c10::toString(local.scalar_type()),
      *spec);
  if (spec->mesh().contains_this_rank()) {
    detail::check_local_shape(kWhere, local, *spec);
  }
  at::Tensor made = detail::wrap(local.detach(), spec);
  detail::explain_no_data(made);
  detail::keep_gradient_distributed(made);
  made.set_requires_grad(requires_grad);
  static_cast<at::Tensor&>(*this) = std::move(made);
}

const DeviceMesh& DTensor::device_mesh() const {
  return checked_meta(*this).spec->mesh();
}

PlacementsRef DTensor::placements() const {
  return checked_meta(*this).spec->placements();
}

const SpecPtr& DTensor::spec() const {
  return checked_meta(*this).spec;
}

at::Tensor DTensor::to_local(
    const std::optional<Placements>& grad_placements) const {
  const auto& spec = checked_meta(*this).spec;
  detail::check_readable("to_local", *spec);
  detail::record_local_tensor(*spec);
  if (!grad_placements) {
    return detail::records(*this) ? detail::to_local_autograd(*this)
                                  : detail::local_counted(*this);
  }
  return detail::to_local_autograd(
      *this,
      detail::checked_grad_placements(*spec, *grad_placements, "to_local"));
}

at::Tensor DTensor::full_tensor(
    const std::optional<Placements>& grad_placements) const {
  if (spec()->is_replicated() && !grad_placements) {
    detail::check_owned_by_this_rank("redistribute", *spec());
    return to_local(); // its backward uses the default gradient layout
  }
  return DTensor(redistribute(detail::replicated_placements(device_mesh())))
      .to_local(grad_placements);
}

at::Tensor DTensor::redistribute(
    PlacementsRef placements,
    const RedistributeOptions& options) const& {
  return DTensor(*this).redistribute(placements, options);
}

at::Tensor DTensor::redistribute(
    PlacementsRef placements,
    const RedistributeOptions& options) && {
  const SpecPtr from = checked_meta(*this).spec;
  const auto dtype = options.forward_dtype.value_or(from->dtype());
  const bool stays = from->placements() == placements && from->dtype() == dtype;
  const SpecPtr to = stays ? from : redistributed_spec(from, placements, dtype);
  if (to == from) { // otherwise planning checks it
    detail::check_owned_by_this_rank("redistribute", *to);
  }
  return detail::redistribute_autograd(
      std::move(*this),
      to,
      {.backward_dtype = options.backward_dtype,
       .async_op = options.async_op,
       .always_records = true});
}

at::Tensor DTensor::redistribute(
    const DeviceMesh& mesh,
    PlacementsRef placements,
    const RedistributeOptions& options) const {
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      mesh == device_mesh(),
      "[redistribute] cannot go from mesh {} to another mesh, {}. Use "
      "full_tensor() and distribute_tensor.",
      device_mesh(),
      mesh);
  return redistribute(placements, options);
}

at::Tensor replicate_tensor(const at::Tensor& tensor, const DeviceMesh& mesh) {
  return DTensor::from_local(tensor, mesh);
}

at::Tensor full_tensor(
    const at::Tensor& tensor,
    const std::optional<Placements>& grad_placements) {
  return is_dtensor(tensor) ? DTensor(tensor).full_tensor(grad_placements)
                            : tensor;
}

at::Tensor to_local(
    const at::Tensor& tensor,
    const std::optional<Placements>& grad_placements) {
  return DTensor(tensor).to_local(grad_placements);
}

at::Tensor redistribute(
    at::Tensor tensor,
    PlacementsRef placements,
    const RedistributeOptions& options) {
  return DTensor(std::move(tensor)).redistribute(placements, options);
}

bool is_pending(const at::Tensor& tensor) {
  return is_dtensor(tensor) &&
      !detail::meta_of(tensor).local_if_here().defined();
}

std::ostream& operator<<(std::ostream& os, const DTensor& t) {
  detail::check_readable("operator<<", *t.spec());
  return os << "DTensor " << *t.spec() << "\nlocal on rank "
            << t.device_mesh().get_rank() << ":\n"
            << static_cast<const at::Tensor&>(detail::local_of(t));
}

} // namespace dtensor
