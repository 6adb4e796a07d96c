// SPDX-License-Identifier: BSD-3-Clause
// Siblings share the redistribution of their input. What was made of a tensor
// lives no longer than the tensor or the graph that was recorded for it:
//
// - a DTensor carries it;
// - a plain tensor may be in the hands of several ranks and is left alone. The
//   node that recorded its redistribution carries it, and the rank remembers
//   the last few tensors weakly. Where nothing is recorded nothing is shared.
//
// The result's history is held weakly: a leaf must not keep alive a graph that
// holds the leaf.
#include <dtensor/parallel/layout_boundary_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/api.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/meta_impl.h>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/node.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>

namespace dtensor::detail {

using torch::autograd::Node;

struct SharedInput {
  InputLayouts layouts;
  DeviceMesh mesh;
  uint32_t version = 0; // of the tensor
  bool grad_mode = false;
  // The result: nobody has changed it in place since if the versions of the
  // DTensors made of it, which count together, and of its part are the same.
  at::Tensor local;
  uint32_t local_version = 0;
  c10::VariableVersion counter;
  uint32_t counted = 0;
  SpecPtr spec;
  bool recorded = false;
  c10::weak_intrusive_ptr<Node> node{c10::intrusive_ptr<Node>()};
};

namespace {

using SharedInputPtr = std::shared_ptr<const SharedInput>;

uint32_t version_of(const at::Tensor& t) {
  return static_cast<uint32_t>(t._version());
}

// Uneven features are no riddle: the module knows how many there are.
FromLocalOptions known_shape(const at::Tensor& x, const InputLayouts& layouts) {
  FromLocalOptions options;
  const auto& plain = layouts.plain;
  const bool cuts_features = x.dim() > 0 && plain.cuts() &&
      (plain.dim() == -1 || plain.dim() == x.dim() - 1);
  if (cuts_features && layouts.features > 0) {
    options.shape = x.sizes().vec();
    options.shape->back() = layouts.features;
  }
  return options;
}

at::Tensor prepare(
    const at::Tensor& x,
    const DeviceMesh& mesh,
    const InputLayouts& layouts) {
  const at::Tensor distributed = is_dtensor(x)
      ? x
      : DTensor::from_local(x, mesh, {layouts.plain}, known_shape(x, layouts));
  const auto& spec = spec_of(distributed);
  DTENSOR_CHECK_VALUE(
      spec->mesh() == mesh,
      "boundary",
      "the input of ",
      describe_module(ModuleScope::current()),
      " is ",
      *spec,
      ", and the module is parallel on ",
      mesh,
      ". Redistribute the input onto that mesh.");
  return redistribute_autograd(
      distributed, spec->with_placements({layouts.desired}, "input_layouts"));
}

struct Keep final : torch::autograd::FunctionPreHook {
  explicit Keep(SharedInputPtr input) : shared(std::move(input)) {}
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& grads) override {
    return grads;
  }
  SharedInputPtr shared;
};

// A plain tensor that this rank saw lately.
struct Recent {
  c10::weak_intrusive_ptr<c10::TensorImpl> tensor{
      c10::intrusive_ptr<c10::TensorImpl>()};
  std::weak_ptr<const SharedInput> shared;
};

struct RecentInputs {
  std::array<Recent, 4> items;
  size_t next = 0;
};

RecentInputs& recent_inputs() {
  thread_local RecentInputs recent;
  return recent;
}

SharedInputPtr find(const at::Tensor& x) {
  if (is_dtensor(x)) {
    return meta_of(x).shared_input;
  }
  for (const auto& item : recent_inputs().items) {
    if (item.tensor.lock().get() == x.unsafeGetTensorImpl()) {
      return item.shared.lock();
    }
  }
  return nullptr;
}

// Places of tensors that live are taken last.
Recent& place_for(const at::Tensor& x) {
  auto& recent = recent_inputs();
  for (auto& item : recent.items) {
    const auto alive = item.tensor.lock();
    if (alive == nullptr || alive.get() == x.unsafeGetTensorImpl()) {
      return item;
    }
  }
  return recent.items[recent.next++ % recent.items.size()];
}

void remember(
    const at::Tensor& x,
    const c10::intrusive_ptr<Node>& node,
    SharedInputPtr shared) {
  if (is_dtensor(x)) {
    // A new meta, so that copies of the tensor that share the old one, such as
    // those that autograd saved, do not get it.
    auto meta = meta_of(x).copy();
    meta->shared_input = std::move(shared);
    x.unsafeGetTensorImpl()->set_backend_meta(std::move(meta));
    return;
  }
  auto& place = place_for(x);
  place.tensor = c10::weak_intrusive_ptr<c10::TensorImpl>(x.getIntrusivePtr());
  place.shared = shared;
  node->add_pre_hook(std::make_unique<Keep>(std::move(shared)));
}

bool worth_sharing(
    const at::Tensor& x,
    const at::Tensor& prepared,
    const InputLayouts& layouts) {
  if (prepared.is_same(x) || local_of(prepared).is_inference()) {
    return false;
  }
  return prepared.requires_grad() ||
      (is_dtensor(x) && spec_of(x)->placements()[0] != layouts.desired);
}

// The shared result, or nothing if it does not fit or is gone.
at::Tensor revive(
    const SharedInput& shared,
    const at::Tensor& x,
    const DeviceMesh& mesh,
    const InputLayouts& layouts) {
  if (shared.layouts != layouts || shared.mesh != mesh ||
      shared.version != version_of(x) ||
      shared.local_version != version_of(shared.local) ||
      shared.counted != shared.counter.current_version() ||
      shared.grad_mode != c10::GradMode::is_enabled()) {
    return {};
  }
  const auto node = shared.node.lock();
  if (shared.recorded && node == nullptr) {
    return {};
  }
  auto result = wrap(shared.local, shared.spec);
  result.unsafeGetTensorImpl()->set_version_counter(shared.counter);
  if (shared.recorded) {
    torch::autograd::impl::set_gradient_edge(result, {node, 0});
  }
  return result;
}

} // namespace

at::Tensor shared_input(
    const at::Tensor& x,
    const DeviceMesh& mesh,
    const InputLayouts& layouts) {
  if (x.is_inference()) {
    return prepare(x, mesh, layouts);
  }
  if (const auto shared = find(x)) {
    if (auto result = revive(*shared, x, mesh, layouts); result.defined()) {
      return result;
    }
  }
  auto prepared = prepare(x, mesh, layouts);
  if (!worth_sharing(x, prepared, layouts)) {
    return prepared;
  }
  const auto node = prepared.grad_fn();
  const auto& local = local_of(prepared);
  remember(
      x,
      node,
      std::make_shared<SharedInput>(SharedInput{
          layouts,
          mesh,
          version_of(x),
          c10::GradMode::is_enabled(),
          local,
          version_of(local),
          prepared.unsafeGetTensorImpl()->version_counter(),
          version_of(prepared),
          spec_of(prepared),
          node != nullptr,
          c10::weak_intrusive_ptr<Node>(node)}));
  return prepared;
}

} // namespace dtensor::detail
