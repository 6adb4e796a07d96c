// SPDX-License-Identifier: BSD-3-Clause
// What siblings share of their input: q, k and v gather theirs once and reduce
// its gradient once.
#pragma once

#include <dtensor/layout/placement.h>
#include <dtensor/ops/boundary_impl.h>
#include <dtensor/parallel/known_input_impl.h>
#include <dtensor/parallel/style_mesh_impl.h>

#include <ATen/core/Tensor.h>

#include <memory>

namespace dtensor::detail {

struct InputLayouts {
  Placement plain; // of a plain input
  Placement desired;
  /// Size of the whole input's last dimension, if the module knows it; else 0.
  int64_t features = 0;
  friend bool operator==(const InputLayouts&, const InputLayouts&) = default;
};

struct SharedInput; // shared_input.cpp

/// Inputs of children of one module to which a plan gives the same layouts.
struct SiblingGroup {
  size_t members = 0;
  /// What they share now; the input or its graph owns it, or, of a plain input
  /// without a graph, this does.
  std::weak_ptr<SharedInput> current;
  std::shared_ptr<SharedInput> owned = nullptr;
};

/// One of them.
struct Sibling {
  std::shared_ptr<SiblingGroup> group; // null: it shares nothing
  size_t index = 0;
};

/// `x` as a DTensor on `where`, plain ones being in layout `plain` along its
/// dimension, brought to `desired` there. Every sibling is served once with
/// what the first of them made of the same tensor; who asks again gets it made
/// anew. Throws RuntimeError if this rank's part was written in between without
/// its version counter.
at::Tensor shared_input(
    const at::Tensor& x,
    const StyleMesh& where,
    const InputLayouts& layouts,
    const Sibling& who = {});

/// The same for an operator that runs as a region. What siblings do not share
/// has no history: the region connects it to `x`. `known` is the module's.
ModuleInput take_input(
    const at::Tensor& x,
    const StyleMesh& where,
    const InputLayouts& layouts,
    const Sibling& who,
    KnownInput& known);

} // namespace dtensor::detail
