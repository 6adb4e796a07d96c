// SPDX-License-Identifier: BSD-3-Clause
// What makes a tensor a DTensor: a BackendMeta with the local tensor and the
// spec, on a TensorImpl without storage whose backend bit is PrivateUse3.
//
// All state lives in the BackendMeta, none in a TensorImpl subclass, because
// parameter.set_data(dtensor) copies the meta into the parameter's own impl.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <dtensor/comm/pending.h>
#include <dtensor/layout/spec.h>
#include <dtensor/tensor/copied_view_impl.h>
#include <dtensor/tensor/is_dtensor.h>
#include <dtensor/tensor/pooled_impl.h>

#include <memory>
#include <utility>

namespace dtensor::detail {

class Boundaries; // ops/boundary_impl.h: the styles that ride on a parameter

/// What an upper layer puts on a tensor, and alone looks into.
struct Rider {
  virtual ~Rider() = default;
};

struct DTensorMeta final : c10::BackendMeta, Pooled<DTensorMeta> {
  DTensorMeta(at::Tensor local, SpecPtr tensor_spec)
      : spec(std::move(tensor_spec)),
        local_(std::move(local)) {}
  DTensorMeta(PendingPtr pending, SpecPtr tensor_spec)
      : spec(std::move(tensor_spec)),
        pending_(std::move(pending)) {}

  /// This rank's part, below autograd: never requires grad. Waits for it where
  /// an asynchronous redistribution has yet to bring it.
  at::Tensor& local() {
    if (C10_UNLIKELY(!local_.defined())) {
      fetch();
    }
    return local_;
  }
  /// Undefined where it is under way.
  const at::Tensor& local_if_here() const {
    return local_;
  }

  // Immutable but for the public fields at the end, so copies share it, unless
  // it carries a shared input or a source, which belong to one tensor.
  c10::intrusive_ptr<c10::BackendMeta> clone(
      const c10::intrusive_ptr<c10::BackendMeta>& self) const override {
    if (shared_input == nullptr && whole_source == nullptr &&
        source_of_next == nullptr) {
      return self;
    }
    auto meta = copy();
    meta->whole_source = std::exchange(source_of_next, nullptr);
    return meta;
  }
  /// The same without the shared input and the source.
  c10::intrusive_ptr<DTensorMeta> copy() const {
    auto meta = c10::make_intrusive<DTensorMeta>(local_, spec);
    meta->pending_ = pending_;
    meta->boundaries = boundaries;
    meta->view_facts = view_facts;
    return meta;
  }

  /// Whether there are boundaries or view facts: one question for both.
  bool has_extras() const {
    return (reinterpret_cast<uintptr_t>(boundaries.get()) |
            reinterpret_cast<uintptr_t>(view_facts.get())) != 0;
  }

  // A weak reference outlives all tensors and keeps none of what they held.
  void release_resources() override {
    local_.reset();
    spec = nullptr;
    boundaries = nullptr;
    shared_input = nullptr;
    view_facts.reset();
    whole_source = nullptr;
    source_of_next = nullptr;
    pending_ = nullptr;
  }

  SpecPtr spec;
  std::shared_ptr<const Boundaries> boundaries;
  /// What the tensor was turned into as the input of a module, kept for the
  /// module's siblings (parallel/shared_input.cpp).
  std::shared_ptr<const void> shared_input;
  /// Null for most. Set where it is made (ops/view_result.cpp).
  c10::intrusive_ptr<ViewFacts> view_facts;
  /// Null for most: who has the whole of a parameter, a WholeSource
  /// (ops/whole_source_impl.h). Who has it has kAskedFirstKey, too.
  std::shared_ptr<Rider> whole_source;
  /// The source of the parameter that is about to take this tensor's data over
  /// (ops/asked_first.cpp); null at all other times.
  mutable std::shared_ptr<Rider> source_of_next;

 private:
  void fetch();

  at::Tensor local_;
  PendingPtr pending_; // where local_ is undefined
};

inline DTensorMeta& meta_of(const at::Tensor& t) {
  return *static_cast<DTensorMeta*>(
      t.unsafeGetTensorImpl()->get_backend_meta());
}

/// What `t` was copied from, if it is a view by name; null for all others.
inline const CopiedFrom* copied_from(const at::Tensor& t) {
  const auto& facts = meta_of(t).view_facts;
  return C10_UNLIKELY(facts != nullptr) ? facts->copied_from.get() : nullptr;
}

/// Throws if `t` is a view that is a copy and out of date.
void check_up_to_date(const at::Tensor& t);

/// This rank's part. Throws for a copied view that is out of date.
inline const at::Tensor& local_of(const at::Tensor& t) {
  auto& meta = meta_of(t);
  if (C10_UNLIKELY(meta.view_facts != nullptr)) {
    check_up_to_date(t);
  }
  return meta.local();
}
/// To be called where a local tensor is written in place; other tensors have a
/// version counter.
inline void count_write(const at::Tensor& t) {
  const auto& facts = meta_of(t).view_facts;
  if (C10_UNLIKELY(facts != nullptr && facts->writes.enabled())) {
    facts->writes.bump();
  }
}
inline const SpecPtr& spec_of(const at::Tensor& t) {
  return meta_of(t).spec;
}
/// Whether it is a DTensor on a mesh that this rank is outside of.
inline bool has_no_part(const at::Tensor& t) {
  return is_dtensor(t) && !spec_of(t)->mesh().contains_this_rank();
}

} // namespace dtensor::detail
