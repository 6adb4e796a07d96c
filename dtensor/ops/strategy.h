// SPDX-License-Identifier: BSD-3-Clause
// Strategy and OpRule: what an operator may do on one mesh dimension, as data.
//
// A strategy says: if the inputs have these placements on a mesh dimension,
// then the local operators of the ranks together compute the whole one, and
// the outputs have those placements.
//
//   mm: m over the ranks      inputs S(0) R     output S(0)
//       k over the ranks      inputs S(1) S(0)  output P(sum)
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

/// Placements on one mesh dimension: one per tensor output (flattened), one
/// per tensor input (OpCall::inputs).
struct Strategy {
  Placements outputs;
  Placements inputs;
  friend bool operator==(const Strategy&, const Strategy&) = default;
};
/// What one mesh dimension may do.
using Strategies = std::vector<Strategy>;

/// A whole-mesh choice: the layout each input must have and each output gets.
/// What a view rule returns, whose mesh dimensions depend on each other.
struct MeshStrategy {
  std::vector<Placements> outputs;
  std::vector<Placements> inputs;
};

/// What was decided for a call: everything a warm call needs.
struct Decision {
  /// Layout each flattened input is brought to; null: it is plain, or has it.
  std::vector<SpecPtr> inputs;
  /// Whether any input is brought to another one.
  bool redistributes = false;
  /// Layout of each flattened tensor output; null for an undefined one.
  std::vector<SpecPtr> outputs;
  /// Where each output begins in the whole first input (OutputMeta::offset).
  std::vector<int64_t> offsets;
  /// Arguments that the local call gets instead of its own.
  std::vector<std::pair<size_t, c10::IValue>> args;
  /// Layout of the gradient of the local tensor of each flattened input, for
  /// regions.
  std::vector<SpecPtr> grads;
  /// The order in memory, as strides, in which the local call gives those of
  /// the first flattened inputs; of the others it is that of the input. What
  /// comes in another order is copied.
  std::vector<Sizes> grad_orders;
  /// Of a region: all ranks have parts of the same shapes, so that they record
  /// the same graph of the local call.
  bool parts_are_equal = false;
  /// Everything is replicated and the shapes of the results are not known
  /// beforehand: the results are replicated, as large as they come out.
  bool shapes_from_results = false;
  /// The rule's local kernel would do no more than the operator itself.
  bool is_plain_call = false;

  /// The layout in which flattened input `i` of `call` reaches the local call.
  const Spec& layout_of(const OpCall& call, size_t i) const {
    return inputs[i] == nullptr ? *call.inputs[i].spec : *inputs[i];
  }
};

/// Strategies of one mesh dimension.
using DimRule = std::function<Strategies(const OpCall&, int64_t mesh_dim)>;
/// The choice for the whole mesh.
using MeshRule = std::function<MeshStrategy(const OpCall&)>;
/// Global shapes of the results, where the operator has no meta kernel.
using MetaRule = std::function<std::vector<OutputMeta>(const OpCall&)>;
/// Rewrites arguments for the local call, besides OpTraits::size_arg.
using LocalizeRule = std::function<void(const OpCall&, Decision&)>;
/// Computes the local results in place of the operator itself: the stack holds
/// local tensors in place of DTensors and the rewritten arguments.
using LocalKernel = std::function<
    void(const c10::OperatorHandle&, const Decision&, torch::jit::Stack*)>;
/// Replaces the call altogether: the stack holds DTensors and gets DTensors.
/// Runs below autograd, or above it for a composite operator.
using DTensorKernel =
    std::function<void(const c10::OperatorHandle&, torch::jit::Stack*)>;

/// Everything the one path needs to know of an operator.
struct OpRule {
  DimRule dim_rule;
  MeshRule mesh_rule; // instead of dim_rule
  MetaRule meta;
  LocalizeRule localize;
  LocalKernel local_kernel;
  DTensorKernel kernel; // instead of everything above

  /// The rule may be applied with StridedShard in place of Shard. (It always
  /// may with units: the part of a rank is one range then too.)
  bool strided = true;
  /// The decision depends on the values of floating-point and Scalar
  /// arguments; else only their types are part of the cache key.
  bool uses_scalar_values = false;
  /// Intercept at the autograd key: the operator is composite (or has a
  /// boundary), and its local call runs with the plain autograd of the local
  /// operator.
  bool region = false;
  /// Gradient formulas call it in their own way: the rule may decide otherwise
  /// inside a backward pass, and the plain tensors of global shape that
  /// formulas make (zeros for an unused output) count as replicated there.
  bool in_gradients = false;
  /// It may also decide otherwise where the gradient goes through a write to a
  /// view.
  bool in_view_gradients = false;
  /// What is true of it in any layout.
  OpTraits traits;

  /// Each sets what it is named after and returns the rule, so that one
  /// expression says it all.
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
  OpRule& sees_backward() {
    in_gradients = true;
    return *this;
  }
  OpRule& sees_view_backward() {
    in_gradients = true;
    in_view_gradients = true;
    return *this;
  }
  OpRule& with_traits(const OpTraits& t) {
    traits = t;
    return *this;
  }
};

} // namespace dtensor
