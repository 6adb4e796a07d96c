// SPDX-License-Identifier: BSD-3-Clause
// distribute_module: makes the parameters of any module DTensors, in layouts
// of your choice.
#pragma once

#include <dtensor/parallel/style.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace dtensor {

/// Called with the full name of every submodule ("" first, the module itself)
/// before the rest is replicated; it may distribute parameters in place with
/// distribute_parameter.
using PartitionFn = std::function<
    void(const std::string&, torch::nn::Module&, const DeviceMesh&)>;
/// Sees the tensor arguments (results) of the module's forward and may replace
/// them. The module must be declared with DTENSOR_MODULE.
using ModuleTensorsFn =
    std::function<void(const std::vector<at::Tensor*>&, const DeviceMesh&)>;

/// Calls `partition_fn` for every submodule, then turns all parameters and
/// buffers that are still plain into replicated DTensors. `mesh` may have any
/// number of dimensions; an undefined one is the current one
/// (comm/mesh_scope.h). Throws NotImplementedError for input_fn or output_fn
/// on a module without hooks.
/// Python: torch.distributed.tensor.distribute_module.
DTENSOR_API void distribute_module(
    torch::nn::Module& module,
    const DeviceMesh& mesh = {},
    const PartitionFn& partition_fn = nullptr,
    const ModuleTensorsFn& input_fn = nullptr,
    const ModuleTensorsFn& output_fn = nullptr);

/// Turns `parameter` itself into a DTensor: the module's member, its registry,
/// tied parameters and an optimizer that holds it all see it. Its gradient
/// lands in the same layout; one that exists is cut along, each rank's own.
/// What an optimizer keeps of it is not: see distribute_optimizer_state.h.
DTENSOR_API void distribute_parameter(
    at::Tensor& parameter,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    std::optional<int64_t> src_data_rank = 0);

} // namespace dtensor
