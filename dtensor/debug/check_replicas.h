// SPDX-License-Identifier: BSD-3-Clause
// CheckReplicas: finds the first tensor that differs between ranks although its
// layout says that it is replicated. A program with such a tensor runs, and its
// loss falls, but it computes something else.
//
//   CheckReplicas check(*model, mesh);     // compares the parameters
//   auto loss = loss_of(model(x), y);      // each module's input and output
//   loss.backward();                       // the loss, and gradients
//   optimizer.step();
//   check.finish();                        // parameters and gradients again
//
// docs/guides/wrong_but_plausible.md says what it finds, and what it does not.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/api.h>
#include <dtensor/layout/mesh.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace dtensor {

namespace detail {
class ReplicaChecker;
}

struct CheckReplicasOptions {
  /// Patterns of full names ("experts.*.weight") of plain parameters that
  /// differ between ranks on purpose. *, ?, [seq] and [!seq] match dots, too.
  std::vector<std::string> local_parameters = {};
  /// Compare the tensor that backward() begins at between the ranks that get
  /// replicated inputs.
  bool losses = true;
  /// Compare get_random_state() of those ranks at each module.
  bool random_states = true;
  /// Elements are equal if they differ by no more than this times the largest
  /// magnitude in the tensor. 0: bit by bit. Greater for ranks whose kernels
  /// round differently (hosts with other processors, atomic additions).
  double tolerance = 0;
};

/// Compares between ranks, while it lives, what layouts say is replicated:
///
/// - parameters and their gradients, along the mesh dimensions on which they
///   are in Replicate; plain parameters along all dimensions of `mesh`;
/// - inputs and outputs of styled modules, the arguments of from_local(), and
///   the gradients that arrive at outputs, along the dimensions on which their
///   layout is Replicate. Dimensions that shard the batch are not compared;
/// - the loss and the random states (get_random_state()), along the dimensions
/// of styles
///   whose inputs are replicated. A loss after an output that is sharded along
///   another dimension than the last one is each rank's own;
/// - seed and position of each random operator on DTensors, and the result of
///   clip_grad_norm_().
///
/// The first difference is a RuntimeError on all ranks that were compared. It
/// names the module and the tensor, the ranks, and what to do. Ranks that call
/// other modules, or in another order, get an error, too. All ranks of the mesh
/// make one, and call the functions below, at the same place. Scopes nest. The
/// collectives are not those that CommDebugMode counts. No Python counterpart.
class DTENSOR_API CheckReplicas {
 public:
  /// Compares the parameters. An undefined `mesh` is the current one
  /// (comm/mesh_scope.h); without one, plain parameters are not compared. The
  /// model outlives the scope.
  explicit CheckReplicas(
      torch::nn::Module& model,
      const DeviceMesh& mesh = {},
      CheckReplicasOptions options = {});
  /// Compares nothing.
  ~CheckReplicas();
  CheckReplicas(const CheckReplicas&) = delete;
  CheckReplicas& operator=(const CheckReplicas&) = delete;

  /// Compares parameters, gradients and random states as they are now.
  /// Parameters are also compared before the first module of each forward pass
  /// that follows a backward pass.
  void finish();

  /// Compares a plain tensor of the program along all dimensions of `mesh`.
  /// `name` stands in the error.
  void compare(
      const at::Tensor& tensor,
      const DeviceMesh& mesh,
      const std::string& name);

  /// How many tensors of this rank were compared so far.
  int64_t compared() const;

 private:
  std::unique_ptr<detail::ReplicaChecker> checker_;
};

} // namespace dtensor
