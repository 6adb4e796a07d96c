// SPDX-License-Identifier: BSD-3-Clause
// Siblings share the redistribution of their input. The input's gradient is
// reduced once, and if the forward redistribution communicates, its result is
// kept. Either all ranks must share or none, because they would deadlock
// otherwise. Therefore the decision depends on the program's actions (tensor,
// version, autograd history), never on data.
//
// Data may change without a new version: through a pointer, data(), or memory
// that other code owns. Therefore each rank compares its local tensor with a
// copy of the tensor that it contributed, and a difference is an error.
//
// A kept result lives at most as long as the tensor or its recorded graph. The
// result is freed earlier when all siblings have used it, or when a sibling
// gets another input. The owner of the result is:
//
// - the input, if it is a DTensor;
// - for a plain input, which several ranks may use: the node that recorded its
//   redistribution, or, if nothing is recorded, the sibling group.
//
// Tensors in inference mode have no version counter, so any write between
// siblings is a write without a new version, hence an error. The shared result
// is a normal tensor, with a counter.
//
// The result's autograd history is held weakly: a leaf must not keep alive a
// graph that owns the leaf.
#include <dtensor/ops/boundary/converter_impl.h>

#include <dtensor/comm/observer.h>
#include <dtensor/error.h>
#include <dtensor/layout/shard_math.h>
#include <dtensor/layout/text.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>
#include <dtensor/torch_nodes_impl.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

namespace dtensor::detail {

namespace {

template <class T>
using Weak = c10::weak_intrusive_ptr<T>;

// Returns the node of a tensor's history, or null if autograd records nothing.
NodePtr history_of(const at::Tensor& x) {
  if (!c10::GradMode::is_enabled() || !x.requires_grad()) {
    return nullptr;
  }
  return torch::autograd::impl::gradient_edge(x).function;
}

// Returns the local tensor of the input, detached.
at::Tensor detached_local(const at::Tensor& x) {
  return is_dtensor(x) ? local_of(x) : x.detach();
}

} // namespace

// State of a tensor that changes with the program's writes and assignments.
class Facts {
 public:
  explicit Facts(const at::Tensor& x)
      : tensor_(is_dtensor(x) ? nullptr : x.getIntrusivePtr()),
        memory_(memory_of(x)),
        history_(history_of(x)),
        version_(version_of(x)),
        grad_mode_(c10::GradMode::is_enabled()) {}

  // True if the state of `x` is unchanged. Does not compare the identity of
  // DTensors, because the DTensor itself owns this object.
  bool still_hold(const at::Tensor& x) const {
    return (is_dtensor(x) || tensor_.lock().get() == x.unsafeGetTensorImpl()) &&
        memory_.lock() == memory_of(x) && version_ == version_of(x) &&
        history_.lock() == history_of(x) &&
        grad_mode_ == c10::GradMode::is_enabled();
  }

 private:
  static c10::intrusive_ptr<c10::StorageImpl> memory_of(const at::Tensor& x) {
    const auto& part = is_dtensor(x) ? local_of(x) : x;
    return part.has_storage() ? part.storage().getWeakStorageImpl().lock()
                              : nullptr;
  }

  Weak<c10::TensorImpl> tensor_;  // if plain
  Weak<c10::StorageImpl> memory_; // replaced by set_data()
  WeakNode history_;
  uint32_t version_;
  bool grad_mode_;
};

struct SharedInput {
  Facts facts; // of the input
  std::string_view maker;
  SpecPtr from;
  SpecPtr to;
  // Result, if the redistribution communicates. The result is unchanged if its
  // own version and `counter` are unchanged. DTensors made of it share
  // `counter`.
  at::Tensor kept;
  uint32_t kept_version = 0;
  c10::VariableVersion counter;
  uint32_t counted = 0;
  // Local tensor that this rank contributed.
  at::Tensor given;
  bool recorded = false;
  WeakNode node{NodePtr()};
  std::vector<bool> served; // by Converter::index_; empty: all are done

  void drop() {
    kept.reset();
    given.reset();
    served.clear();
  }
};

namespace {

using SharedInputPtr = std::shared_ptr<SharedInput>;

struct Keep final : torch::autograd::FunctionPreHook {
  explicit Keep(SharedInputPtr input) : shared(std::move(input)) {}
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& grads) override {
    return grads;
  }
  SharedInputPtr shared;
};

bool communicates(const Spec& from, const Spec& to) {
  return from.mesh().size() > 1 && from.mesh().contains_this_rank() &&
      !from.is_replicated() &&
      from.placements() != PlacementsRef(to.placements());
}

bool worth_sharing(const at::Tensor& x, const at::Tensor& prepared, bool way) {
  return !prepared.is_same(x) && !local_of(prepared).is_inference() &&
      x.device() == prepared.device() && (prepared.requires_grad() || way);
}

// Returns this rank's contribution: a view of a gathered tensor, or else a
// copy.
at::Tensor
given_for(const at::Tensor& kept, const at::Tensor& part, const Spec& from) {
  const auto& layout = from.placements()[0];
  if (from.mesh().ndim() > 1 || !layout.is_shard() ||
      kept.sizes() != from.sizes()) {
    return part.clone();
  }
  const auto dim = layout.dim();
  const Interval mine = chunk(
      kept.size(dim),
      from.mesh().size(),
      from.mesh().get_local_rank(),
      layout.unit());
  return kept.narrow(dim, mine.begin, mine.size());
}

void remember(
    const at::Tensor& x,
    const SpecPtr& from,
    const at::Tensor& prepared,
    Siblings& siblings,
    size_t index) {
  const auto& node = prepared.grad_fn();
  auto shared = std::make_shared<SharedInput>(SharedInput{
      .facts = Facts(x),
      .maker = ModuleScope::current(),
      .from = from,
      .to = spec_of(prepared),
      .kept = {},
      .counter = prepared.unsafeGetTensorImpl()->version_counter(),
      .counted = version_of(prepared),
      .given = {},
      .recorded = node != nullptr,
      .node = WeakNode(node),
      .served = std::vector<bool>(siblings.members)});
  shared->served[index] = true;
  if (communicates(*from, *shared->to)) {
    shared->kept = local_of(prepared);
    shared->kept_version = version_of(shared->kept);
    shared->given = given_for(shared->kept, detached_local(x), *from);
  }
  siblings.current = shared;
  if (is_dtensor(x)) {
    // Creates a new meta, because copies that share the old meta (such as
    // tensors that autograd saved) must not own the shared input.
    auto meta = meta_of(x).copy();
    meta->shared_input = std::move(shared);
    x.unsafeGetTensorImpl()->set_backend_meta(std::move(meta));
  } else if (node == nullptr) {
    siblings.owned = std::move(shared);
  } else {
    node->add_pre_hook(std::make_unique<Keep>(std::move(shared)));
  }
}

// Reinterprets elements as bits for comparison, because NaN != NaN.
at::Tensor bits(const at::Tensor& t) {
  const auto real = t.is_complex() ? at::view_as_real(t) : t;
  switch (real.element_size()) {
    case 1:
      return real.view(at::kByte);
    case 2:
      return real.view(at::kShort);
    case 4:
      return real.view(at::kInt);
    default:
      return real.view(at::kLong);
  }
}

void check_unwritten(const SharedInput& shared, const at::Tensor& part) {
  DTENSOR_CHECK(
      part.sizes() == shared.given.sizes() &&
          at::equal(bits(part), bits(shared.given)),
      "[boundary] the input of {}, {}, was written after {} used it, without "
      "a change of its version counter: through data_ptr() or data(), or in "
      "inference mode. Write to it with operators such as copy_() outside of "
      "inference mode, or pass the module a clone().",
      describe_module(ModuleScope::current()),
      *shared.from,
      describe_module(shared.maker));
}

bool is_for(const SharedInput& shared, const at::Tensor& x, size_t index) {
  return !shared.served.empty() && !shared.served[index] &&
      (!is_dtensor(x) || meta_of(x).shared_input.get() == &shared) &&
      shared.facts.still_hold(x) &&
      shared.counted == shared.counter.current_version() &&
      (!shared.kept.defined() ||
       shared.kept_version == version_of(shared.kept)) &&
      (!shared.recorded || !shared.node.expired());
}

at::Tensor serve(SharedInput& shared, const at::Tensor& x, size_t index) {
  const auto part = detached_local(x);
  if (shared.kept.defined()) {
    check_unwritten(shared, part);
  }
  auto result = wrap(
      shared.kept.defined() ? shared.kept
                            : redistribute_local(part, shared.from, shared.to),
      shared.to);
  result.unsafeGetTensorImpl()->set_version_counter(shared.counter);
  if (shared.recorded) {
    torch::autograd::impl::set_gradient_edge(result, {shared.node.lock(), 0});
  }
  shared.served[index] = true;
  if (std::ranges::find(shared.served, false) == shared.served.end()) {
    shared.drop();
  }
  return result;
}

} // namespace

at::Tensor Converter::convert_shared(const at::Tensor& x) const {
  if (const auto shared = siblings_->current.lock()) {
    if (is_for(*shared, x, index_)) {
      return serve(*shared, x, index_);
    }
    shared->drop();
  }
  const auto distributed = as_dtensor(x);
  auto result = redistribute_to_normal(distributed);
  const auto& from = spec_of(distributed);
  if (worth_sharing(x, result, communicates(*from, *spec_of(result)))) {
    remember(x, from, result, *siblings_, index_);
  }
  return result;
}

// Redistributes the input to a normal tensor, also in inference mode.
at::Tensor Converter::redistribute_to_normal(
    const at::Tensor& distributed) const {
  if (!c10::InferenceMode::is_enabled()) {
    return redistribute(distributed);
  }
  const c10::InferenceMode off(false);
  const c10::NoGradGuard no_grad;
  return redistribute(distributed);
}

} // namespace dtensor::detail
