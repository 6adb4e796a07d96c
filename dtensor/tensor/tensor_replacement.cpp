// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/tensor/tensor_replacement_impl.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <dtensor/tensor/dispatch_keys_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>
#include <dtensor/torch_nodes_impl.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace dtensor::detail {
namespace {

// Resets a gradient accumulator that was created while the tensor was on the
// meta device. Such an accumulator expects gradients on the meta device.
void forget_accumulator(const at::Tensor& t) {
  if (torch::autograd::impl::try_get_grad_accumulator(t) != nullptr) {
    torch::autograd::impl::set_grad_accumulator(t, WeakNode(NodePtr()));
  }
}

} // namespace

at::Tensor plain_meta_of(const at::Tensor& t) {
  if (!is_dtensor(t)) {
    return t;
  }
  const auto* note = dynamic_cast<MetaShardNote*>(
      local_of(t).unsafeGetTensorImpl()->get_backend_meta());
  return note == nullptr ? at::Tensor() : note->unsharded;
}

void replace_tensor_impl(const at::Tensor& self, const at::Tensor& other) {
  const c10::NoGradGuard no_grad;
  auto boundaries = is_dtensor(self) ? meta_of(self).boundaries : nullptr;
  auto source = is_dtensor(self) ? meta_of(self).unsharded_source : nullptr;
  auto facts = is_dtensor(self) ? meta_of(self).view_facts : nullptr;
  auto* impl = self.unsafeGetTensorImpl();
  impl->shallow_copy_from(other.getIntrusivePtr());
  if (is_dtensor(self)) {
    auto meta = meta_of(self).copy();
    meta->boundaries = std::move(boundaries);
    meta->unsharded_source = std::move(source);
    if (meta->unsharded_source != nullptr) {
      meta->view_facts = std::move(facts);
      add_intercept_key(self);
    }
    impl->set_backend_meta(std::move(meta));
    explain_no_data(self);
  } else {
    impl->set_backend_meta(nullptr);
  }
  impl->bump_version();
  forget_accumulator(self);
  if (self.grad().defined() && self.grad().is_meta() && !self.is_meta()) {
    self.mutable_grad() = at::Tensor();
  }
}

at::Tensor empty_twin(const at::Tensor& t, c10::Device device) {
  return at::empty_strided(
      t.sizes(), t.strides(), t.options().device(device).requires_grad(false));
}

at::Tensor allocated(const at::Tensor& self) {
  if (is_dtensor(self)) {
    const auto& spec = spec_of(self);
    return wrap(
        empty_twin(local_of(self), c10::Device(spec->mesh().device_type())),
        spec);
  }
  const auto* note =
      dynamic_cast<MetaNote*>(self.unsafeGetTensorImpl()->get_backend_meta());
  return empty_twin(self, note == nullptr ? at::kCPU : note->device);
}

void allocate(const at::Tensor& self) {
  replace_tensor_impl(self, allocated(self));
}

} // namespace dtensor::detail
