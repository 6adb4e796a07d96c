// SPDX-License-Identifier: BSD-3-Clause
// A TorchScript model on several ranks.
//
//   auto script = torch::jit::load("model.pt");
//   const auto modules = parallelize_script(script, mesh["tp"], {
//       {"fc1", ColwiseParallel()},
//       {"fc2", RowwiseParallel()}});
//   const auto plain = implicit_replication();
//   const auto y = full_tensor(script.forward({replicate(x)}).toTensor());
#pragma once

#include <dtensor/layout/mesh.h>
#include <dtensor/parallel/style.h>

#include <memory>

namespace torch::jit {
struct Module;
}

namespace dtensor {

/// Applies the plan to a scripted or traced module, by its names, and makes all
/// other parameters and buffers replicated DTensors: the script's own tensors,
/// so that its code runs as it is. Which of its modules are linear, embedding
/// and layer norm their Python classes tell, which TorchScript keeps, or else
/// what forward() does with their weights. Outputs of styled modules stay
/// DTensors. Tensors that the script makes itself are plain and alike on all
/// ranks, which implicit_replication() says. Parameter values of rank 0 count.
/// Returns modules that hold the same tensors, for optimizers and state
/// dictionaries; ties between modules are known while it lives. Throws what
/// parallelize_module does.
DTENSOR_API std::shared_ptr<torch::nn::Module> parallelize_script(
    const torch::jit::Module& script,
    const DeviceMesh& mesh,
    const ParallelizePlan& plan = {});

} // namespace dtensor
