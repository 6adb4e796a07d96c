// SPDX-License-Identifier: BSD-3-Clause
// Converter: redistributes the tensors that a styled module receives to the
// layout in which the module computes. A Converter reuses earlier work in two
// ways. Most inputs of a module have the same layout, so the layouts are
// computed once. Sibling modules with the same input, such as q, k and v,
// gather the input once and reduce its gradient once (shared_input.cpp).
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/mesh.h>
#include <dtensor/layout/placement.h>
#include <dtensor/layout/spec.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/tensor/region_impl.h>
#include <dtensor/tensor/replica_observer_impl.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace dtensor::detail {

/// The mesh of a styled module's tensors, and the mesh dimension that the style
/// shards along.
struct StyleMesh {
  DeviceMesh mesh;
  int64_t dim = 0;

  // Implicit: a 1-D mesh is a StyleMesh.
  StyleMesh(DeviceMesh all, int64_t styled_dim = 0)
      : mesh(std::move(all)),
        dim(styled_dim) {}

  /// Number of ranks that a style shards over.
  int64_t size() const {
    return mesh.size(dim);
  }
  /// Returns `placement` on the style's dimension, `others` elsewhere.
  Placements with(PlacementsRef others, const Placement& placement) const {
    Placements all(others.begin(), others.end());
    all[static_cast<size_t>(dim)] = placement;
    return all;
  }
  /// Returns `placement` on the style's dimension, Replicate() elsewhere.
  Placements alone(const Placement& placement) const {
    return with(replicated_placements(mesh), placement);
  }

  friend bool operator==(const StyleMesh&, const StyleMesh&) = default;
};

struct InputLayouts {
  Placement plain; // of a plain input
  Placement desired;
  /// Size of dimension `features_dim` of the full input, or 0 if unknown. The
  /// features are the last dimension, or the channels of a convolution.
  int64_t features = 0;
  int64_t features_dim = -1;
  friend bool operator==(const InputLayouts&, const InputLayouts&) = default;
};

struct SharedInput; // shared_input.cpp

/// Inputs of children of one module, with the same layouts in one plan.
struct Siblings {
  size_t members = 0;
  /// Current shared input. Owned by the input or its graph, or by `owned` for a
  /// plain input without a graph.
  std::weak_ptr<SharedInput> current;
  std::shared_ptr<SharedInput> owned = nullptr;
};

class Converter {
 public:
  /// Adds this converter to `siblings`, which share the redistribution. Null:
  /// shares nothing.
  Converter(
      StyleMesh where,
      InputLayouts layouts,
      std::shared_ptr<Siblings> siblings = nullptr)
      : where_(std::move(where)),
        layouts_(layouts),
        siblings_(std::move(siblings)),
        index_(siblings_ == nullptr ? 0 : siblings_->members++) {}

  /// Returns `x` as a DTensor in the desired layout. Differentiable. Each
  /// sibling gets the result of the first sibling once, for the same tensor; a
  /// second request by one sibling computes the result again. Throws ValueError
  /// for a plain tensor with another number of features and for another mesh.
  /// Throws RuntimeError if the local tensor was written in between and its
  /// version counter did not change.
  at::Tensor convert(const at::Tensor& x) const;

  /// Like convert(), for an operator that runs as a region. The result has a
  /// `value`, and an `origin` unless siblings share it. The region connects the
  /// two, and sets the gradient's layout.
  Conversion convert_for_region(const at::Tensor& x) const;

  /// Notifies replica observers of a tensor that enters or leaves a module: a
  /// DTensor, or a plain tensor in the layout `plain`.
  void notify(ReplicaKind kind, const at::Tensor& x) const;

  const StyleMesh& where() const {
    return where_;
  }
  const InputLayouts& layouts() const {
    return layouts_;
  }

 private:
  // Layouts of the last plain input. Only the rank that owns the mesh reads and
  // writes this cache.
  struct Last {
    Sizes sizes;
    Sizes strides;
    SpecPtr from; // null: nothing cached
    SpecPtr to;
    // True if the global shape was computed from the local shape. Ranks compare
    // such local shapes from time to time.
    bool is_inferred = false;
  };

  at::Tensor as_dtensor(const at::Tensor& x) const;
  at::Tensor redistribute(const at::Tensor& distributed) const;
  bool is_like_last(const at::Tensor& x) const;
  at::Tensor convert_like_last(const at::Tensor& x) const;
  void cache(const at::Tensor& x, const SpecPtr& from, const SpecPtr& to) const;

  bool may_share(const at::Tensor& x) const {
    return siblings_ != nullptr && siblings_->members >= 2 && !x.is_meta();
  }
  at::Tensor convert_shared(const at::Tensor& x) const;
  at::Tensor redistribute_to_normal(const at::Tensor& distributed) const;

  StyleMesh where_;
  InputLayouts layouts_;
  std::shared_ptr<Siblings> siblings_;
  size_t index_; // in siblings_
  mutable Last last_;
};

/// Notifies replica observers of a tensor that enters or leaves a module: a
/// DTensor, or a plain tensor in layout `plain`.
void notify_module_tensor(
    ReplicaKind kind,
    const at::Tensor& x,
    const StyleMesh& where,
    const Placement& plain);

/// Returns the module's name for messages: "module \"blocks.0.attn\"" or "the
/// root module".
std::string describe_module(std::string_view name);

} // namespace dtensor::detail
