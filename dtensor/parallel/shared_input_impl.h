// SPDX-License-Identifier: BSD-3-Clause
// Shared redistribution of one input by sibling modules: q, k and v gather
// their input once and reduce its gradient once.
#pragma once

#include <dtensor/layout/placement.h>
#include <dtensor/ops/path/boundary_impl.h>
#include <dtensor/parallel/input_layout_cache_impl.h>
#include <dtensor/parallel/style_mesh_impl.h>

#include <ATen/core/Tensor.h>

#include <memory>

namespace dtensor::detail {

struct InputLayouts {
  Placement plain; // of a plain input
  Placement desired;
  /// Size of the last dimension of the full input, or 0 if not known.
  int64_t features = 0;
  friend bool operator==(const InputLayouts&, const InputLayouts&) = default;
};

struct SharedInput; // shared_input.cpp

/// Inputs of children of one module, with the same layouts in one plan.
struct SiblingGroup {
  size_t members = 0;
  /// Current shared input. Owned by the input or its graph, or by `owned` for a
  /// plain input without a graph.
  std::weak_ptr<SharedInput> current;
  std::shared_ptr<SharedInput> owned = nullptr;
};

/// Member of a sibling group.
struct Sibling {
  std::shared_ptr<SiblingGroup> group; // null: shares nothing
  size_t index = 0;
};

/// Converts `x` to a DTensor on `where` (plain inputs have layout `plain`) and
/// redistributes it to `desired`. Each sibling gets the result of the first
/// sibling once, for the same tensor; a second request by one sibling computes
/// the result again. Throws RuntimeError if the local tensor was written in
/// between without a new version.
at::Tensor shared_input(
    const at::Tensor& x,
    const StyleMesh& where,
    const InputLayouts& layouts,
    const Sibling& who = {});

/// Like shared_input(), for an operator that runs as a region. A result that
/// siblings do not share has no autograd history: the region connects it to
/// `x`. `known` is the module's cache.
ModuleInput take_input(
    const at::Tensor& x,
    const StyleMesh& where,
    const InputLayouts& layouts,
    const Sibling& who,
    InputLayoutCache& known);

} // namespace dtensor::detail
