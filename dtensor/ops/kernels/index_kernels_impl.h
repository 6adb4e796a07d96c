// SPDX-License-Identifier: BSD-3-Clause
// Local kernels of indices along sharded dimensions: index_select, gather,
// scatter and similar operators, x[i, :, j] and x[mask].
#pragma once

#include <dtensor/ops/kernels/local_kernels_impl.h>

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

/// Indexes x by a mask, which may be sharded, or by masks and other indices.
/// This is the kernel of the calls for which indexes_shards_by_mask() returns
/// true.
void index_shards_by_mask(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack);
bool indexes_shards_by_mask(c10::ArrayRef<c10::IValue> args);

} // namespace dtensor::detail
