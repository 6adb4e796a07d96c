// SPDX-License-Identifier: BSD-3-Clause
// distribute_module: turns the parameters of any module into DTensors with
// given layouts.
#pragma once

#include <dtensor/parallel/style.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace dtensor {

/// Called with the full name of each submodule, first for the module itself
/// (""). May distribute parameters in place with distribute_parameter().
using PartitionFn = std::function<
    void(const std::string&, torch::nn::Module&, const DeviceMesh&)>;
/// Called with the tensor arguments of the module's forward (input_fn) or its
/// tensor results (output_fn), which it may replace. The module must be
/// declared with DTENSOR_MODULE.
using ModuleTensorsFn =
    std::function<void(const std::vector<at::Tensor*>&, const DeviceMesh&)>;

/// Calls `partition_fn` for every submodule, then turns all remaining plain
/// parameters and buffers into replicated DTensors. `mesh` may have any number
/// of dimensions; an undefined mesh means the current mesh (comm/mesh_scope.h).
/// Throws NotImplementedError for input_fn or output_fn on a module without
/// hooks.
/// Python: torch.distributed.tensor.distribute_module.
DTENSOR_API void distribute_module(
    torch::nn::Module& module,
    const DeviceMesh& mesh = {},
    const PartitionFn& partition_fn = nullptr,
    const ModuleTensorsFn& input_fn = nullptr,
    const ModuleTensorsFn& output_fn = nullptr);

/// Turns `parameter` itself into a DTensor. The module's member, its registry,
/// tied parameters and an optimizer that holds the parameter then all refer to
/// the DTensor. The values of rank `src_data_rank` of each mesh dimension are
/// scattered; with nullopt, every rank shards its own values without
/// communication. Gradients get the same layout. An existing gradient is
/// sharded from each rank's own values. Optimizer state is not sharded: see
/// distribute_optimizer_state.h. Throws the errors of distribute_tensor, and
/// ValueError for a parameter of a replicated module
/// (data_parallel/replicate.h).
/// Python: the module's parameter is replaced by
/// torch.nn.Parameter(distribute_tensor(...)).
DTENSOR_API void distribute_parameter(
    at::Tensor& parameter,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    std::optional<int64_t> src_data_rank = 0);

} // namespace dtensor
