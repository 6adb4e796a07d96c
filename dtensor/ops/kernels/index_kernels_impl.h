// SPDX-License-Identifier: BSD-3-Clause
// Kernels of indices along sharded dimensions: index_select, gather, scatter
// and similar operators, x[i, :, j] and x[mask]. Conversions between indices
// along a local tensor and global indices.
#pragma once

#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <functional>
#include <optional>
#include <vector>

namespace dtensor::detail {

/// Look up elements at indices of a dimension that is sharded over the ranks.
/// The result has zeros for the elements of other ranks.
LocalKernelFunction look_up_local;
/// Writes elements at indices of a dimension that is sharded over the ranks.
LocalKernelFunction write_at_indices_local;

/// Look up x[i, :, j], and write x[i, :, j] = values, where x is sharded along
/// indexed dimensions. Indices and masks are global. The result of a lookup has
/// zeros for the elements of other ranks.
LocalKernelFunction look_up_tensor_index_local;
LocalKernelFunction write_tensor_index_local;
/// Returns true for an index that is a mask: it selects the elements where it
/// is true.
bool is_mask(const at::Tensor& index);

/// Indices of the dimensions of a tensor; none for a dimension that is kept.
using IndexList = c10::List<std::optional<at::Tensor>>;
IndexList as_list(const std::vector<at::Tensor>& indices);
/// Returns the indices of a call; undefined for a dimension that is kept. Each
/// mask is replaced by the results of positions_of(mask).
std::vector<at::Tensor> indices_by_dim(
    const c10::IValue& indices,
    const std::function<std::vector<at::Tensor>(const at::Tensor&)>&
        positions_of);

/// Indexes x by a mask, which may be sharded, or by masks and other indices.
/// This is the kernel of the calls for which indexes_shards_by_mask() returns
/// true.
void index_shards_by_mask(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack);
bool indexes_shards_by_mask(c10::ArrayRef<c10::IValue> args);

/// Returns true if select_on_shards() computes x[mask], or x[:, mask] with
/// `begin` dimensions in front of the mask: DTensors of one mesh that are not
/// both replicated, and a mask with the sizes of the masked dimensions of x.
bool selects_on_shards(
    const at::Tensor& self,
    const at::Tensor& mask,
    int64_t begin = 0);

/// Returns x[mask], or x[:, mask], for the arguments "self" and `mask_name` of
/// a call. Each rank selects from its shard. Differentiable.
at::Tensor select_on_shards(
    const KernelArgs& args,
    const at::Tensor& self,
    const at::Tensor& mask,
    const char* mask_name,
    int64_t begin = 0);

/// Converts local indices to global indices; `held` lists the global indices
/// that the rank holds.
at::Tensor to_global_indices(const at::Tensor& local, const Intervals& held);

/// Converts global indices to local indices; -1 for indices of other ranks.
at::Tensor to_local_indices(const at::Tensor& global, const Intervals& held);

/// Returns `values`, the elements at the global `indices` along `dim` of a
/// tensor of layout `spec`, as a function of this rank's shard `local`.
/// `values` and `indices` are equal on all ranks that share the dimension. The
/// gradient is scattered into the shards, without communication. If `values` is
/// undefined, the values are picked from the shards.
at::Tensor picked_from_shards(
    const at::Tensor& local,
    const at::Tensor& values,
    const at::Tensor& indices,
    int64_t dim,
    const SpecPtr& spec);

} // namespace dtensor::detail
