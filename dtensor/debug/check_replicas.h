// SPDX-License-Identifier: BSD-3-Clause
// CheckReplicas: finds the first tensor that differs between ranks although its
// layout is Replicate. A program with such a tensor runs and its loss falls,
// but its results are wrong.
//
//   CheckReplicas check(*model, mesh);     // compares the parameters
//   auto loss = loss_of(model(x), y);      // each module's input and output
//   loss.backward();                       // the loss, and gradients
//   optimizer.step();
//   check.finish();                        // parameters and gradients again
//
// docs/guides/wrong_but_plausible.md lists the errors that CheckReplicas
// detects, and those that it misses.
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

/// Options of CheckReplicas.
struct CheckReplicasOptions {
  /// Patterns of full names ("experts.*.weight") of plain parameters that
  /// differ between ranks on purpose. *, ?, [seq] and [!seq] also match dots.
  std::vector<std::string> local_parameters = {};
  /// Compares the loss, the scalar on which backward() is called without a
  /// gradient, between ranks with replicated inputs.
  bool losses = true;
  /// Compares get_random_state() between ranks with replicated inputs, at each
  /// module.
  bool random_states = true;
  /// Elements are equal if they differ by at most `tolerance` times the largest
  /// magnitude in the tensor. 0 compares bitwise. Use a larger value if the
  /// ranks round differently (hosts with different processors, atomic
  /// additions).
  double tolerance = 0;
};

/// Compares tensors between ranks that are replicated according to their
/// layouts:
///
/// - parameters and their gradients, along the mesh dimensions on which they
///   are replicated; plain parameters along all dimensions of `mesh`;
/// - inputs and outputs of modules with parallel styles, the arguments of
///   from_local(), and the gradients of outputs, along the dimensions on which
///   their layout is Replicate. Dimensions that shard the batch are not
///   compared;
/// - the loss and the random states (get_random_state()), along the dimensions
///   along which inputs of styled modules are replicated. If the most recent
///   module output is sharded along a tensor dimension other than its last,
///   each rank is assumed to have its own loss;
/// - seed and position of each random operator on DTensors, and the result of
///   clip_grad_norm_().
///
/// The first difference throws a RuntimeError on all ranks of the comparison.
/// The error names the module and the tensor, the ranks, and a remedy. Ranks
/// that call different modules, or call them in different orders, are also an
/// error. All ranks of the mesh must construct the object and call its
/// functions at the same point of the program. Scopes nest. CommDebugMode does
/// not count the collectives of the comparisons. No Python counterpart.
class DTENSOR_API CheckReplicas {
 public:
  /// Compares the parameters. An undefined `mesh` means the current mesh
  /// (comm/mesh_scope.h); without a current mesh, plain parameters are not
  /// compared. The model must outlive the scope.
  explicit CheckReplicas(
      torch::nn::Module& model,
      const DeviceMesh& mesh = {},
      CheckReplicasOptions options = {});
  /// Ends the scope without a comparison.
  ~CheckReplicas();
  CheckReplicas(const CheckReplicas&) = delete;
  CheckReplicas& operator=(const CheckReplicas&) = delete;

  /// Compares the current parameters, gradients and random states. (Parameters
  /// are also compared at the start of each forward pass that follows a
  /// backward pass.)
  void finish();

  /// Compares a plain tensor of the program along all dimensions of `mesh`.
  /// `name` identifies the tensor in the error.
  void compare(
      const at::Tensor& tensor,
      const DeviceMesh& mesh,
      const std::string& name);

  /// Returns the number of this rank's tensors that have been compared.
  int64_t compared() const;

 private:
  std::unique_ptr<detail::ReplicaChecker> checker_;
};

} // namespace dtensor
