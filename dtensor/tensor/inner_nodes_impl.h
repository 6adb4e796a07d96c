// SPDX-License-Identifier: BSD-3-Clause
// The nodes of a small part of the graph, run one after the other by a node
// that stands for all of them, as LibTorch's CopySlices runs the one it holds.
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

/// Some of the exits, by their numbers; what has a higher one is in none.
using ExitSet = std::bitset<32>;

class InnerNodes {
 public:
  using Locals = c10::SmallVector<at::Tensor, 4>;

  /// An edge out of this part: to output `slot` of the node before it, or, if
  /// that is negative, to `edge`.
  struct Exit {
    int64_t slot = -1;
    torch::autograd::Edge edge;
  };

  /// The nodes from `result` back to `before` and to the edges `passing`.
  /// Nothing if they are many, are no tree, or reach another node.
  static std::optional<InnerNodes> between(
      const at::Tensor& result,
      const Node* before,
      c10::ArrayRef<torch::autograd::Edge> passing);

  const c10::SmallVector<Exit, 4>& exits() const {
    return exits_;
  }

  /// Where the gradient of the result arrives.
  torch::autograd::Edge entry() const {
    return {nodes_[0].node, nodes_[0].input_nr};
  }

  /// Numbers of the exits, that of the lowest slot first: an order that does
  /// not depend on the nodes, which need not be the same on all ranks.
  c10::SmallVector<size_t, 4> exits_by_slot() const;

  /// Gradients at the exits for the gradient `grad` of the result. Inside a
  /// node of the graph that is being executed. Where a product has some that
  /// are `early` and others, `between` gets the early ones before the others
  /// are computed.
  Locals run(
      at::Tensor grad,
      const ExitSet& early,
      c10::function_ref<void(Locals&)> between) const;

  /// As those of Node.
  void release_variables();
  void will_release_variables();
  /// That of the node which made the result.
  std::string name() const;

 private:
  struct Search;
  // Where the gradient of one of a node's inputs goes.
  struct Target {
    bool leaves = false;
    int32_t index = -1; // of an exit, or of the next inner node; -1: nowhere
  };
  struct Inner {
    NodePtr node;
    uint32_t input_nr = 0; // by which its one gradient comes
    c10::SmallVector<Target, 3> targets;
  };

  // Some of each node's targets.
  using Targets = c10::SmallVector<ExitSet, 3>;
  // Gradients under way.
  struct Grads {
    Locals waiting; // at nodes
    Locals left;    // at exits
  };

  InnerNodes() = default;
  bool stays_inside(const Target& target) const;
  Targets leading_to(const ExitSet& exits) const;
  bool may_run_twice(const ExitSet& early) const;
  // Nodes with such targets, for these; null: all. What has others in `later`
  // keeps its gradient.
  void run_nodes(const Targets* wanted, const Targets* later, Grads& grads)
      const;
  void run_node(size_t i, const ExitSet* wanted, bool again, Grads& grads)
      const;

  c10::SmallVector<Inner, 3> nodes_; // in the order in which they run
  c10::SmallVector<Exit, 4> exits_;
};

} // namespace dtensor::detail
