// SPDX-License-Identifier: BSD-3-Clause
// The state of a DTensor: a BackendMeta with the local tensor and the spec, on
// a TensorImpl without storage whose backend bit is PrivateUse3.
//
// All state is in the BackendMeta, not in a TensorImpl subclass, because
// parameter.set_data(dtensor) copies the meta into the parameter's own impl.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <dtensor/api.h>
#include <dtensor/comm/pending.h>
#include <dtensor/layout/spec.h>
#include <dtensor/tensor/copied_view_impl.h>
#include <dtensor/tensor/is_dtensor.h>
#include <dtensor/tensor/pooled_impl.h>

#include <cstdint>
#include <memory>
#include <utility>

namespace dtensor::detail {

/// Returns the version counter of `t`, or 0 for an inference tensor, which has
/// no counter.
inline uint32_t version_of(const at::Tensor& t) {
  return t.is_inference() ? 0 : static_cast<uint32_t>(t._version());
}

// Parallel styles attached to a parameter (ops/boundary/boundaries_impl.h).
class Boundaries;

/// State that an upper layer attaches to a tensor, opaque to this layer.
struct Attachment {
  virtual ~Attachment() = default;
};

struct DTENSOR_INTERNAL_API DTensorMeta final : c10::BackendMeta,
                                                Pooled<DTensorMeta> {
  DTensorMeta(at::Tensor local, SpecPtr tensor_spec)
      : spec(std::move(tensor_spec)),
        local_(std::move(local)) {}
  DTensorMeta(PendingPtr pending, SpecPtr tensor_spec)
      : spec(std::move(tensor_spec)),
        pending_(std::move(pending)) {}

  /// Returns the local tensor, below autograd: never requires grad. Waits for
  /// an asynchronous redistribution in flight.
  at::Tensor& local() {
    if (C10_UNLIKELY(!local_.defined())) {
      fetch();
    }
    return local_;
  }
  /// Returns the local tensor, or undefined while it is in flight.
  const at::Tensor& local_if_here() const {
    return local_;
  }

  // The meta is immutable except for the public fields at the end. Copies
  // therefore share it, unless the meta has a shared input or a source, which
  // belong to a single tensor.
  c10::intrusive_ptr<c10::BackendMeta> clone(
      const c10::intrusive_ptr<c10::BackendMeta>& self) const override {
    if (shared_input == nullptr && unsharded_source == nullptr &&
        source_of_next == nullptr) {
      return self;
    }
    auto meta = copy();
    meta->unsharded_source = std::exchange(source_of_next, nullptr);
    return meta;
  }
  /// Returns a copy without the shared input and the source.
  c10::intrusive_ptr<DTensorMeta> copy() const {
    auto meta = c10::make_intrusive<DTensorMeta>(local_, spec);
    meta->pending_ = pending_;
    meta->boundaries = boundaries;
    meta->view_facts = view_facts;
    return meta;
  }

  /// True if there are boundaries or view facts. One branch tests both.
  bool has_extras() const {
    return (reinterpret_cast<uintptr_t>(boundaries.get()) |
            reinterpret_cast<uintptr_t>(view_facts.get())) != 0;
  }

  // A weak reference outlives all tensors, so the contents are released here.
  void release_resources() override {
    local_.reset();
    spec = nullptr;
    boundaries = nullptr;
    shared_input = nullptr;
    view_facts.reset();
    unsharded_source = nullptr;
    source_of_next = nullptr;
    pending_ = nullptr;
  }

  SpecPtr spec;
  std::shared_ptr<const Boundaries> boundaries;
  /// The tensor after its conversion to a module input, cached for the module's
  /// siblings (ops/boundary/shared_input.cpp).
  std::shared_ptr<const void> shared_input;
  /// Usually null. Set in ops/variants/view_result.cpp.
  c10::intrusive_ptr<ViewFacts> view_facts;
  /// Usually null: the UnshardedSource (ops/unsharded/unsharded_source_impl.h)
  /// that provides the unsharded parameter. A tensor with a source also has
  /// kInterceptKey.
  std::shared_ptr<Attachment> unsharded_source;
  /// The source of the parameter that takes over this tensor's data
  /// (ops/unsharded/interceptor.cpp). Null except during that set_data().
  mutable std::shared_ptr<Attachment> source_of_next;

 private:
  void fetch();

  at::Tensor local_;
  PendingPtr pending_; // set while local_ is undefined
};

inline DTensorMeta& meta_of(const at::Tensor& t) {
  return *static_cast<DTensorMeta*>(
      t.unsafeGetTensorImpl()->get_backend_meta());
}

/// Returns the origin of `t` if `t` is a view that is a copy, otherwise null.
inline CopiedFrom* copied_from(const at::Tensor& t) {
  const auto& facts = meta_of(t).view_facts;
  return C10_UNLIKELY(facts != nullptr) ? facts->copied_from.get() : nullptr;
}

/// Copies the values of the viewed tensor again if `t` is a view that is a copy
/// and out of date: a collective call on the mesh. Does nothing if the copy
/// cannot be made again, as for conjugated values.
void bring_up_to_date(const at::Tensor& t);

/// Throws if `t` is a view that is a copy and out of date.
DTENSOR_INTERNAL_API void check_up_to_date(const at::Tensor& t);

/// Returns the local tensor. Throws for a copied view that is out of date.
inline const at::Tensor& local_of(const at::Tensor& t) {
  auto& meta = meta_of(t);
  if (C10_UNLIKELY(meta.view_facts != nullptr)) {
    check_up_to_date(t);
  }
  return meta.local();
}
/// Counts a write to a local tensor in place. Needed for tensors without a
/// version counter of their own; has no effect on others.
inline void count_write(const at::Tensor& t) {
  const auto& facts = meta_of(t).view_facts;
  if (C10_UNLIKELY(facts != nullptr && facts->writes.enabled())) {
    facts->writes.bump();
  }
}
inline const SpecPtr& spec_of(const at::Tensor& t) {
  return meta_of(t).spec;
}
/// True if `t` is a DTensor on a mesh that does not contain this rank.
inline bool is_outside_mesh(const at::Tensor& t) {
  return is_dtensor(t) && !spec_of(t)->mesh().contains_this_rank();
}

} // namespace dtensor::detail
