// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/tensor/autograd_impl.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <dtensor/comm/observer.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/gradient_impl.h>
#include <dtensor/tensor/memory_order_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/torch_nodes_impl.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <vector>

namespace dtensor::detail {
namespace {

using torch::autograd::variable_list;

bool records(const at::Tensor& t) {
  return c10::GradMode::is_enabled() && t.requires_grad();
}

// One input, one output, and what brings the gradient of one to the other.
// torch::autograd::Function would do, at several times the cost: it keeps what
// it saves in a dictionary, under a lock.
class LayoutNode : public Node {
 public:
  /// Undefined gradients stay undefined: a zero of the global shape would be a
  /// plain tensor.
  variable_list apply(variable_list&& grads) override {
    variable_list result(1);
    if (grads[0].defined()) {
      const ModuleScope scope(module_, /*backward=*/true);
      result[0] = backward(grads[0]);
    }
    return result;
  }
  std::string name() const override {
    return name_;
  }

 protected:
  explicit LayoutNode(const char* name) : name_(name) {}
  virtual at::Tensor backward(const at::Tensor& grad) = 0;

 private:
  const char* name_;
  // Backward collectives are the doing of the module that ran forward.
  std::string_view module_ = ModuleScope::current();
};

// A leaf takes its gradient over without a copy when nobody else holds the
// tensor. It cannot see who else holds the memory behind a DTensor or a local
// tensor: here is where to look, or two leaves that were added would end with
// one memory for both gradients, and clipping would scale it twice.
bool is_held_elsewhere(const at::Tensor& plain) {
  return plain.use_count() > 1 || plain.storage().use_count() > 1;
}

bool is_held_elsewhere_dtensor(const at::Tensor& dtensor) {
  const auto* impl = dtensor.unsafeGetTensorImpl();
  return dtensor.use_count() > 1 ||
      impl->get_backend_meta_intrusive_ptr().use_count() > 2 ||
      is_held_elsewhere(local_of(dtensor));
}

// `output` is what `node` made of `input`.
template <class NodeType>
at::Tensor record(
    NodeHolder<NodeType> node,
    const at::Tensor& input,
    at::Tensor output) {
  node->set_next_edges(torch::autograd::collect_next_edges(input));
  torch::autograd::set_history(output, std::move(node));
  return output;
}

// The same data without history, whose changes `counter` counts.
at::Tensor alias(const at::Tensor& t, const c10::VariableVersion& counter) {
  return at::Tensor(t.unsafeGetTensorImpl()->shallow_copy_and_detach(
      counter, /*allow_tensor_metadata_change=*/true));
}

const c10::VariableVersion& counter_of(const at::Tensor& t) {
  return t.unsafeGetTensorImpl()->version_counter();
}

// A graph that saved a tensor refuses to run backward after a change of it,
// which it sees by a counter of the tensor's changes. What an operator writes
// to a DTensor counts there and not at its local tensor. So whatever shares
// memory with a DTensor and is not inside it shares its counter.
at::Tensor wrap_counted(
    const at::Tensor& local,
    const SpecPtr& spec,
    const at::Tensor& counted) {
  auto result = wrap(
      local.requires_grad() ? alias(local, counter_of(local)) : local, spec);
  if (!counted.is_inference() && !result.is_inference()) {
    result.unsafeGetTensorImpl()->set_version_counter(counter_of(counted));
  }
  if (is_dtensor(counted)) {
    meta_of(result).view_facts = meta_of(counted).view_facts;
  }
  return result;
}

at::Tensor local_counted(const at::Tensor& dtensor) {
  const auto& local = local_of(dtensor);
  return dtensor.is_inference() || local.is_inference()
      ? local
      : alias(local, counter_of(dtensor));
}

at::Tensor cast(const at::Tensor& t, at::ScalarType dtype) {
  return t.scalar_type() == dtype ? t : t.to(dtype);
}

// from_local and to_local are each other's backward, and so are their gradient
// layouts: what differentiates a gradient again arrives in the layout that the
// tensor had forward, Partial kept. Ranks whose results add up to the whole
// have to get terms that do so too, not each the whole, or the second
// derivative counts as often as there are ranks.
struct FromLocalBackward final : LayoutNode {
  FromLocalBackward(SpecPtr f, Placements g, bool leaf)
      : LayoutNode("FromLocalBackward"),
        forward(std::move(f)),
        grad_layout(std::move(g)),
        of_leaf(leaf) {}
  at::Tensor backward(const at::Tensor& given) override {
    const auto& grad = is_dtensor(given)
        ? given
        : gradient_as_dtensor(given, *forward);
    const auto& spec = spec_of(grad);
    const bool copies = of_leaf && is_held_elsewhere_dtensor(grad);
    const auto placed = spec->placements() == PlacementsRef(grad_layout)
        ? grad
        : redistribute_autograd(grad, spec->with_placements(grad_layout));
    const auto local = records(placed)
        ? to_local_autograd(placed, Placements(forward->placements()))
        : local_counted(placed);
    return copies ? local.clone() : local;
  }
  SpecPtr forward;
  Placements grad_layout;
  bool of_leaf;
};

at::Tensor cast_and_redistribute(const at::Tensor& dtensor, const SpecPtr& to) {
  const auto local = redistribute_local(
      cast(local_of(dtensor), to->dtype()),
      spec_of(dtensor)->with_dtype(to->dtype()),
      to);
  if (!local.is_same(local_of(dtensor))) {
    return wrap(local, to);
  }
  return wrap_counted(local, to, dtensor); // nothing had to move
}

// This rank's part, taken out of a DTensor that nobody else holds: of use to
// whoever may read it only while nobody can write to it.
at::Tensor take_local(at::Tensor dtensor) {
  static_cast<void>(local_of(dtensor)); // refuses a view that is out of date
  const auto* impl = dtensor.unsafeGetTensorImpl();
  const bool is_ours = dtensor.use_count() == 1 &&
      impl->get_backend_meta_intrusive_ptr().use_count() == 2;
  return is_ours ? std::move(meta_of(dtensor).local()) : local_of(dtensor);
}

at::Tensor cast_and_redistribute_async(at::Tensor dtensor, const SpecPtr& to) {
  const auto from = spec_of(dtensor);
  auto local = cast(take_local(std::move(dtensor)), to->dtype());
  const at::Tensor like = at::empty({0}, local.options());
  return wrap(
      redistribute_local_async(
          std::move(local), from->with_dtype(to->dtype()), to),
      to,
      like);
}

struct ToLocalBackward final : LayoutNode {
  ToLocalBackward(SpecPtr f, const Placements& grad_layout, bool leaf)
      : LayoutNode("ToLocalBackward"),
        of_leaf(leaf),
        forward(std::move(f)),
        grad_spec(forward->with_tensor(
            grad_layout,
            forward->sizes(),
            dense_strides(forward->sizes(), forward->strides()))) {}
  at::Tensor backward(const at::Tensor& grad) override {
    check_plain_gradient(grad);
    const auto spec = grad.scalar_type() == grad_spec->dtype()
        ? grad_spec
        : grad_spec->with_dtype(grad.scalar_type());
    const auto part = spec->mesh().contains_this_rank()
        ? in_memory_order(grad, spec->strides())
        : grad;
    const bool copies = of_leaf && is_held_elsewhere(grad);
    const auto mine = copies ? part.clone() : part;
    return records(mine)
        ? from_local_autograd(mine, spec, Placements(forward->placements()))
        : wrap_counted(mine, spec, mine);
  }
  bool of_leaf;
  SpecPtr forward;
  SpecPtr grad_spec;
};

struct RedistributeBackward final : LayoutNode {
  RedistributeBackward(SpecPtr f, at::ScalarType dtype, bool async)
      : LayoutNode("RedistributeBackward"),
        from(std::move(f)),
        grad_dtype(dtype),
        async_op(async) {}
  at::Tensor backward(const at::Tensor& given) override {
    const auto& grad =
        is_dtensor(given) ? given : gradient_as_dtensor(given, *from);
    const auto target =
        spec_of(grad)
            ->with_placements(without_partial(from->placements()))
            ->with_dtype(grad_dtype);
    return cast(
        redistribute_autograd(grad, target, {.async_op = async_op}),
        from->dtype());
  }
  SpecPtr from;
  at::ScalarType grad_dtype;
  bool async_op;
};

at::Tensor nothing(const SpecPtr& spec) {
  const auto options = at::TensorOptions()
                           .dtype(spec->dtype())
                           .device(spec->mesh().device_type());
  return wrap(at::empty({0}, options), spec);
}

// All inputs get nothing for nothing.
struct NothingBackward final : Node {
  explicit NothingBackward(std::vector<SpecPtr> s) : specs(std::move(s)) {}
  variable_list apply(variable_list&& grads) override {
    variable_list result;
    for (const auto& spec : specs) {
      result.push_back(grads[0].defined() ? nothing(spec) : at::Tensor());
    }
    return result;
  }
  std::string name() const override {
    return "NothingBackward";
  }
  std::vector<SpecPtr> specs;
};

} // namespace

Placements without_partial(PlacementsRef placements) {
  Placements result(placements.begin(), placements.end());
  for (auto& p : result) {
    if (p.is_partial()) {
      p = Replicate();
    }
  }
  return result;
}

SpecPtr replicated_spec(const Spec& like, const at::Tensor& whole) {
  const Placements everywhere(like.placements().size(), Replicate());
  return Spec::make(
      like.mesh(),
      everywhere,
      whole.sizes(),
      whole.strides(),
      whole.scalar_type());
}

at::Tensor from_local_autograd(
    const at::Tensor& local,
    const SpecPtr& spec,
    const std::optional<Placements>& grad_placements) {
  if (!records(local)) {
    return wrap_counted(local, spec, local);
  }
  return record(
      make_node<FromLocalBackward>(
          spec,
          grad_placements.value_or(without_partial(spec->placements())),
          local.is_leaf()),
      local,
      wrap_counted(local, spec, local));
}

at::Tensor to_local_autograd(
    const at::Tensor& dtensor,
    const std::optional<Placements>& grad_placements) {
  if (!records(dtensor)) {
    return local_counted(dtensor);
  }
  const auto& spec = spec_of(dtensor);
  return record(
      make_node<ToLocalBackward>(
          spec,
          grad_placements.value_or(without_partial(spec->placements())),
          dtensor.is_leaf()),
      dtensor,
      alias(local_of(dtensor), counter_of(dtensor)));
}

at::Tensor nothing_from(at::TensorList inputs, const SpecPtr& spec) {
  auto result = nothing(spec);
  if (!inputs.empty()) {
    std::vector<SpecPtr> specs;
    for (const auto& input : inputs) {
      specs.push_back(spec_of(input));
    }
    auto node = make_node<NothingBackward>(std::move(specs));
    node->set_next_edges(torch::autograd::collect_next_edges(inputs.vec()));
    torch::autograd::set_history(result, std::move(node));
  }
  return result;
}

at::Tensor redistribute_autograd(
    at::Tensor dtensor,
    const SpecPtr& to,
    const RedistributeMode& mode) {
  const SpecPtr from = spec_of(dtensor);
  const bool changes_nothing = from == to ||
      (from->placements() == to->placements() && from->dtype() == to->dtype());
  if (changes_nothing && !(mode.always_records && records(dtensor))) {
    return dtensor;
  }
  NodeHolder<RedistributeBackward> node;
  if (records(dtensor)) { // looked at before the tensor is given away
    node = make_node<RedistributeBackward>(
        from,
        mode.backward_dtype.value_or(dtensor.scalar_type()),
        mode.async_op);
    node->set_next_edges(torch::autograd::collect_next_edges(dtensor));
  }
  auto result = mode.async_op && !changes_nothing
      ? cast_and_redistribute_async(std::move(dtensor), to)
      : cast_and_redistribute(dtensor, to);
  if (node != nullptr) {
    torch::autograd::set_history(result, std::move(node));
  }
  return result;
}

} // namespace dtensor::detail
