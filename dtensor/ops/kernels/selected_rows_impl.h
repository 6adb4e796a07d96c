// SPDX-License-Identifier: BSD-3-Clause
// Rows that the ranks of a mesh dimension have selected, along any dimension.
// The number of selected rows depends on values, so the ranks exchange these
// numbers. A second exchange then gives every rank an even shard.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/comm/group.h>
#include <dtensor/layout/shard_math.h>
#include <dtensor/layout/spec.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>

#include <vector>

namespace dtensor::detail {

/// Returns the ranges of rows of a tensor that consists of the rows of each
/// rank, in rank order, along `dim`. The rows of this rank are those of `rows`.
std::vector<Interval>
ranges_of_ranks(Group& group, const at::Tensor& rows, int64_t dim = 0);

/// Returns this rank's shard of the tensor of layout `spec`. The ranks of
/// `mesh_dim` have the ranges `has` of this tensor. This mesh dimension alone
/// shards the dimension of the rows. Differentiable.
at::Tensor even_shard(
    const at::Tensor& rows,
    std::vector<Interval> has,
    const SpecPtr& spec,
    int64_t mesh_dim);

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

} // namespace dtensor::detail
