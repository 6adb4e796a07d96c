// SPDX-License-Identifier: BSD-3-Clause
// A small subgraph of autograd nodes that one node runs in sequence, as
// LibTorch's CopySlices runs the node that it holds.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>
#include <dtensor/torch_nodes_impl.h>
#include <torch/csrc/autograd/edge.h>

#include <bitset>
#include <optional>
#include <string>

namespace dtensor::detail {

/// A set of exits, by number. Exits beyond the bitset's size belong to no set.
using ExitSet = std::bitset<32>;

class InnerNodes {
 public:
  using Locals = c10::SmallVector<at::Tensor, 4>;

  /// An edge that leaves the subgraph: to output `slot` of the node before the
  /// subgraph, or to `edge` if `slot` is negative.
  struct Exit {
    int64_t slot = -1;
    torch::autograd::Edge edge;
  };

  /// Collects the nodes from `result` back to `before` and to the edges
  /// `passing`. Empty if there are too many nodes, if the nodes do not form a
  /// tree, or if they reach another node.
  static std::optional<InnerNodes> between(
      const at::Tensor& result,
      const Node* before,
      c10::ArrayRef<torch::autograd::Edge> passing);

  const c10::SmallVector<Exit, 4>& exits() const {
    return exits_;
  }

  /// Returns the edge that receives the gradient of the result.
  torch::autograd::Edge entry() const {
    return {nodes_[0].node, nodes_[0].input_nr};
  }

  /// Returns the exit numbers sorted by slot. This order is the same on all
  /// ranks, even if the ranks recorded different nodes.
  c10::SmallVector<size_t, 4> exits_by_slot() const;

  /// Computes the gradients at the exits from the gradient `grad` of the
  /// result. Must be called inside a node that autograd is executing. If a
  /// matmul has both `early` exits and others, `between` receives the gradients
  /// at early exits before the others are computed.
  Locals run(
      at::Tensor grad,
      const ExitSet& early,
      c10::function_ref<void(Locals&)> between) const;

  /// Release saved variables, like the functions of Node with these names.
  void release_variables();
  void will_release_variables();
  /// Returns the name of the node that computed the result.
  std::string name() const;

 private:
  struct Search;
  // The destination of the gradient of one of a node's inputs.
  struct Target {
    bool leaves = false;
    int32_t index = -1; // exit or next inner node; -1: none
  };
  struct Inner {
    NodePtr node;
    uint32_t input_nr = 0; // input that receives the gradient
    c10::SmallVector<Target, 3> targets;
  };

  // For each node, a subset of its targets.
  using Targets = c10::SmallVector<ExitSet, 3>;
  // Gradients that are computed but not yet consumed.
  struct Grads {
    Locals waiting; // at the inputs of nodes
    Locals left;    // at exits
  };

  InnerNodes() = default;
  bool stays_inside(const Target& target) const;
  Targets leading_to(const ExitSet& exits) const;
  bool may_run_twice(const ExitSet& early) const;
  // Runs the nodes that have `wanted` targets, for these targets only. A null
  // `wanted` means all targets. A node that also has `later` targets keeps its
  // incoming gradient.
  void run_nodes(const Targets* wanted, const Targets* later, Grads& grads)
      const;
  void run_node(size_t i, const ExitSet* wanted, bool again, Grads& grads)
      const;

  c10::SmallVector<Inner, 3> nodes_; // in execution order
  c10::SmallVector<Exit, 4> exits_;
};

} // namespace dtensor::detail
