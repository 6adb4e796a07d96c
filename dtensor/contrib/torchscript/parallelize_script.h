// SPDX-License-Identifier: BSD-3-Clause
// Runs a TorchScript model on several ranks, with a given plan or a plan that
// is found in the model's code. Target: dtensor::torchscript.
//
//   auto script = torch::jit::load("model.pt");
//   const auto modules = parallelize_script(script, mesh["tp"], {
//       {"fc1", ColwiseParallel()},
//       {"fc2", RowwiseParallel()}});
//   const auto plain = implicit_replication();
//   const auto y =
//       full_tensor(script.forward({replicate_tensor(x)}).toTensor());
//
//   std::cout << tp_transform(script, mesh["tp"]);  // finds the plan
#pragma once

#include <ATen/core/ivalue.h>
#include <dtensor/layout/mesh.h>
#include <dtensor/parallel/style.h>
#include <dtensor/program/plan_text.h>

#include <memory>
#include <vector>

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

/// Finds a plan for a scripted or traced model from the code of forward() and
/// all functions that it calls. Products are aten::linear, and matmul, mm and
/// addmm with a transposed weight. The code states no sizes. The search finds
/// sizes from `sample_inputs`, the arguments of forward(). Arguments at the end
/// may be omitted if they have defaults. Without sample inputs, tensors of the
/// shapes that the weights suggest are used.
///
/// A branch is read if its condition depends only on attributes (with their
/// current values, such as `training`), None and numbers of dimensions. Weights
/// stay unsharded if branches that depend on sizes or data, loops, or operators
/// that need data use them. Weights in attributes that the script sets stay
/// unsharded, too. The search uses no values of weights and does not change the
/// script. find_tp_plan() of a program (program/tp_transform.h) documents the
/// plan.
///
/// Throws ValueError for a script without forward() and for inputs that it does
/// not accept, and RuntimeError for a script that is already parallel.
DTENSOR_API std::vector<PlanEntryText> find_tp_plan(
    const torch::jit::Module& script,
    const std::vector<c10::IValue>& sample_inputs = {});

/// Calls parallelize_script() with the found plan and returns the plan, for
/// printing. An optimizer can use the script's own parameters. State
/// dictionaries need modules that hold the parameters. To get such modules,
/// call parallelize_script() with make_plan(find_tp_plan(script)). (Not in
/// Python.)
DTENSOR_API std::vector<PlanEntryText> tp_transform(
    torch::jit::Module& script,
    const DeviceMesh& mesh,
    const std::vector<c10::IValue>& sample_inputs = {});

} // namespace dtensor
