// SPDX-License-Identifier: BSD-3-Clause
// Siblings share the redistribution of their input: what was made of a tensor
// stays attached to that very tensor, and goes away with it.
//
// A leaf cannot carry it: the result's graph holds the leaf, and leaf and
// result would keep each other alive. The last leaf is remembered per rank.
#include <dtensor/parallel/layout_boundary_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/api.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/meta_impl.h>

#include <ATen/core/grad_mode.h>

namespace dtensor::detail {
namespace {

at::Tensor prepare(
    const at::Tensor& x,
    const DeviceMesh& mesh,
    const Placement& plain,
    const Placement& desired) {
  const at::Tensor distributed =
      is_dtensor(x) ? x : DTensor::from_local(x, mesh, {plain});
  const auto& spec = spec_of(distributed);
  DTENSOR_CHECK_VALUE(
      spec->mesh() == mesh,
      "boundary",
      "the input is ",
      *spec,
      ", and the module is parallel on ",
      mesh,
      ". Redistribute the input onto that mesh.");
  return redistribute_autograd(
      distributed, spec->with_placements({desired}, "input_layouts"));
}

bool matches(
    const SharedInput& shared,
    const at::Tensor& x,
    const DeviceMesh& mesh,
    const Placement& plain,
    const Placement& desired) {
  return shared.mesh == mesh && shared.plain == plain &&
      shared.desired == desired && shared.version == x._version() &&
      shared.grad_mode == c10::GradMode::is_enabled();
}

std::shared_ptr<const SharedInput> carried_by(const at::Tensor& x) {
  auto* const meta = x.unsafeGetTensorImpl()->get_backend_meta();
  if (is_dtensor(x)) {
    return static_cast<DTensorMeta*>(meta)->shared_input;
  }
  auto* const plain = dynamic_cast<PlainMeta*>(meta);
  return plain == nullptr ? nullptr : plain->shared_input;
}

// A new meta, so that copies of the tensor that share the old one, such as
// those that autograd saved, do not get it.
void carry(const at::Tensor& x, std::shared_ptr<const SharedInput> shared) {
  auto* const impl = x.unsafeGetTensorImpl();
  if (is_dtensor(x)) {
    auto meta = meta_of(x).copy();
    meta->shared_input = std::move(shared);
    impl->set_backend_meta(std::move(meta));
  } else {
    impl->set_backend_meta(c10::make_intrusive<PlainMeta>(std::move(shared)));
  }
}

struct LastLeaf {
  c10::weak_intrusive_ptr<c10::TensorImpl> leaf{
      c10::intrusive_ptr<c10::TensorImpl>()};
  std::shared_ptr<const SharedInput> shared;
};

LastLeaf& last_leaf() {
  thread_local LastLeaf last;
  return last;
}

bool is_graph_leaf(const at::Tensor& x) {
  return c10::GradMode::is_enabled() && x.requires_grad() && x.is_leaf();
}

std::shared_ptr<const SharedInput> find(const at::Tensor& x) {
  if (!is_graph_leaf(x)) {
    return carried_by(x);
  }
  const auto& last = last_leaf();
  const auto alive = last.leaf.lock();
  return alive.get() == x.unsafeGetTensorImpl() ? last.shared : nullptr;
}

void remember(const at::Tensor& x, std::shared_ptr<const SharedInput> shared) {
  if (is_graph_leaf(x)) {
    last_leaf() = {
        c10::weak_intrusive_ptr<c10::TensorImpl>(x.getIntrusivePtr()),
        std::move(shared)};
  } else {
    carry(x, std::move(shared));
  }
}

} // namespace

at::Tensor shared_input(
    const at::Tensor& x,
    const DeviceMesh& mesh,
    const Placement& plain,
    const Placement& desired) {
  const bool other_backend = !is_dtensor(x) &&
      x.unsafeGetTensorImpl()->get_backend_meta() != nullptr &&
      carried_by(x) == nullptr;
  if (x.is_inference() || other_backend) {
    return prepare(x, mesh, plain, desired);
  }
  if (const auto shared = find(x);
      shared != nullptr && matches(*shared, x, mesh, plain, desired)) {
    return shared->prepared;
  }
  auto prepared = prepare(x, mesh, plain, desired);
  const bool worth_it = !prepared.is_same(x) &&
      (prepared.requires_grad() ||
       (is_dtensor(x) ? spec_of(x)->placements()[0] : plain) != desired);
  if (worth_it) {
    remember(
        x,
        std::make_shared<SharedInput>(SharedInput{
            mesh,
            plain,
            desired,
            static_cast<uint32_t>(x._version()),
            c10::GradMode::is_enabled(),
            prepared}));
  }
  return prepared;
}

} // namespace dtensor::detail
