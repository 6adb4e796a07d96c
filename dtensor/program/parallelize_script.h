// SPDX-License-Identifier: BSD-3-Clause
// Runs a TorchScript model on several ranks.
//
//   auto script = torch::jit::load("model.pt");
//   const auto modules = parallelize_script(script, mesh["tp"], {
//       {"fc1", ColwiseParallel()},
//       {"fc2", RowwiseParallel()}});
//   const auto plain = implicit_replication();
//   const auto y =
//       full_tensor(script.forward({replicate_tensor(x)}).toTensor());
#pragma once

#include <dtensor/layout/mesh.h>
#include <dtensor/parallel/style.h>

#include <memory>

namespace torch::jit {
struct Module;
}

namespace dtensor {

/// Applies the plan to a scripted or traced module, by its module names. Makes
/// all other parameters and buffers replicated DTensors. The script's own
/// tensors become DTensors, so its code runs unchanged.
///
/// Modules are recognized as linear, embedding or layer norm by their Python
/// class, which TorchScript keeps, or else by the use of their weights in
/// forward(). Outputs of styled modules stay DTensors. Tensors that the script
/// creates are plain tensors and must be equal on all ranks (see
/// implicit_replication()). Rank 0's parameter values are scattered.
///
/// Returns modules that hold the same tensors, for optimizers and state
/// dictionaries. Ties between modules are recognized only while the returned
/// module exists. Throws the errors of parallelize_module.
DTENSOR_API std::shared_ptr<torch::nn::Module> parallelize_script(
    const torch::jit::Module& script,
    const DeviceMesh& mesh,
    const ParallelizePlan& plan = {});

} // namespace dtensor
