// SPDX-License-Identifier: BSD-3-Clause
// Strategy and OpRule: the layouts that an operator supports on one mesh
// dimension, as data.
//
// A strategy lists placements on a mesh dimension. If the inputs have its input
// placements, the operator may run on each rank's local tensors, and the
// outputs have its output placements.
//
//   mm: m sharded             inputs S(0) R     output S(0)
//       k sharded             inputs S(1) S(0)  output P(sum)
//
// "Everything replicated" holds for every operator and need not be listed.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <dtensor/ops/op_call.h>
#include <dtensor/ops/traits.h>

#include <functional>
#include <vector>

namespace dtensor {

/// Placements on one mesh dimension: one per tensor output (flattened), and one
/// per tensor input (OpCall::inputs).
struct Strategy {
  Placements outputs;
  Placements inputs;
  friend bool operator==(const Strategy&, const Strategy&) = default;
};
/// Strategies to choose from on one mesh dimension.
using Strategies = std::vector<Strategy>;

/// A choice for the whole mesh: the layout that each input must have, and the
/// layout that each output gets. View rules return a MeshStrategy, since their
/// mesh dimensions depend on each other.
struct MeshStrategy {
  std::vector<Placements> outputs;
  std::vector<Placements> inputs;
};

/// Decision for a call. Calls with the same key run from the cached decision.
struct Decision {
  /// Layout to which each flattened input is redistributed; null if the input
  /// is plain or already has the layout.
  std::vector<SpecPtr> inputs;
  /// True if any input is redistributed.
  bool redistributes = false;
  /// Layout of each flattened tensor output; null for an undefined output.
  std::vector<SpecPtr> outputs;
  /// Offset of each output in the storage of the full first input
  /// (OutputMeta::offset).
  std::vector<int64_t> offsets;
  /// Arguments that replace the caller's in the local call, by position.
  std::vector<std::pair<size_t, c10::IValue>> args;
  /// Layout of the gradient of each flattened input's local tensor, for regions
  /// (OpRule::region).
  std::vector<SpecPtr> grads;
  /// Memory order, as strides, of the gradients of the first flattened inputs.
  /// Gradients of the remaining inputs have the input's order. A gradient that
  /// the local call returns in another order is copied.
  std::vector<Sizes> gradient_dim_orders;
  /// For regions: true if all ranks have local shards of the same shapes, and
  /// so record the same autograd graph for the local call.
  bool has_equal_shards = false;
  /// True if everything is replicated and the result shapes are not known in
  /// advance. The operator itself computes the results, which are replicated.
  bool shapes_from_results = false;
  /// True if the operator itself computes the local results, and the rule's
  /// local kernel is not called.
  bool is_plain_call = false;

  /// Returns the layout in which flattened input `i` of `call` reaches the
  /// local call.
  const Spec& layout_of(const OpCall& call, size_t i) const {
    return inputs[i] == nullptr ? *call.inputs[i].spec : *inputs[i];
  }
};

/// Returns the strategies of one mesh dimension.
using DimRule = std::function<Strategies(const OpCall&, int64_t mesh_dim)>;
/// Returns the choice for the whole mesh.
using MeshRule = std::function<MeshStrategy(const OpCall&)>;
/// Returns the global shapes of the results, for operators without a meta
/// kernel.
using MetaRule = std::function<std::vector<OutputMeta>(const OpCall&)>;
/// Rewrites arguments of the local call, besides OpTraits::size_arg.
using LocalizeRule = std::function<void(const OpCall&, Decision&)>;
/// Computes the local results in place of the operator. The stack holds the
/// arguments of the local call: local tensors, and the rewritten arguments.
using LocalKernel = std::function<
    void(const c10::OperatorHandle&, const Decision&, torch::jit::Stack*)>;
/// Returns the number of random draws of a local kernel (random/random.h).
using DrawCount =
    std::function<int64_t(const c10::OperatorHandle&, torch::jit::Stack*)>;
/// Replaces the whole call: pops DTensors from the stack and pushes DTensors.
/// Runs below autograd, or above it for a composite operator or a region.
using DTensorKernel =
    std::function<void(const c10::OperatorHandle&, torch::jit::Stack*)>;
/// Returns true for the calls that a kernel computes; gets their arguments in
/// schema order.
using CallTest = std::function<bool(c10::ArrayRef<c10::IValue>)>;

/// Properties of an operator that dispatch needs.
struct OpRule {
  DimRule dim_rule;
  MeshRule mesh_rule; // instead of dim_rule
  MetaRule meta;
  LocalizeRule localize;
  LocalKernel local_kernel;
  DrawCount draws;       // of local_kernel; ranks outside the mesh skip as many
  DTensorKernel kernel;  // instead of everything above
  CallTest kernel_takes; // the calls that `kernel` computes; empty: all

  /// True if StridedShard may replace Shard in the strategies. (Shards with
  /// units always may: the elements of a rank are then still one range.)
  bool strided = true;
  /// True if the decision depends on the values of floating-point and Scalar
  /// arguments. Otherwise only their types are part of the cache key.
  bool uses_scalar_values = false;
  /// True if the operator runs as a region: autograd records its local call on
  /// the local tensors. For composite operators and operators with a boundary
  /// (OpTraits::boundary).
  bool region = false;
  /// True if the rule lists other strategies for calls by gradient formulas
  /// (OpCall::in_backward). Plain tensors of global shape that formulas make
  /// (zeros for an unused output) count as replicated.
  bool used_in_backward = false;
  /// True if the rule also lists other strategies where the gradient passes
  /// through a write to a view (OpCall::in_view_backward).
  bool depends_on_view_gradients = false;
  /// Properties of the operator in any layout.
  OpTraits traits;

  /// Returns true if `kernel` computes the call with these arguments.
  bool runs_kernel(c10::ArrayRef<c10::IValue> args) const {
    return kernel && (!kernel_takes || kernel_takes(args));
  }

  /// Sets a field and returns the rule, so that calls can be chained.
  OpRule& with_meta(MetaRule m) {
    meta = std::move(m);
    return *this;
  }
  OpRule& with_localize(LocalizeRule l) {
    localize = std::move(l);
    return *this;
  }
  OpRule& with_local_kernel(LocalKernel k) {
    local_kernel = std::move(k);
    return *this;
  }
  OpRule& with_draws(DrawCount d) {
    draws = std::move(d);
    return *this;
  }
  OpRule& with_kernel(DTensorKernel k, CallTest takes) {
    kernel = std::move(k);
    kernel_takes = std::move(takes);
    return *this;
  }
  OpRule& no_strided() {
    strided = false;
    return *this;
  }
  OpRule& scalar_values() {
    uses_scalar_values = true;
    return *this;
  }
  OpRule& as_region() {
    region = true;
    return *this;
  }
  OpRule& depends_on_backward() {
    used_in_backward = true;
    return *this;
  }
  OpRule& depends_on_view_backward() {
    used_in_backward = true;
    depends_on_view_gradients = true;
    return *this;
  }
  OpRule& with_traits(const OpTraits& t) {
    traits = t;
    return *this;
  }
};

} // namespace dtensor
