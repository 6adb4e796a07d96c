// SPDX-License-Identifier: BSD-3-Clause
// Rows that the ranks of a mesh dimension have selected. Their number depends
// on values, so the ranks tell each other how many they have. An exchange then
// gives every rank an even part.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <dtensor/comm/group.h>
#include <dtensor/layout/shard_math.h>
#include <dtensor/layout/spec.h>

#include <vector>

namespace dtensor::detail {

/// Returns the ranges of rows of a tensor that consists of the rows of each
/// rank, in rank order. This rank has those of `rows`.
std::vector<Interval> ranges_of_ranks(Group& group, const at::Tensor& rows);

/// Returns this rank's shard of the tensor of layout `spec`, of which the ranks
/// of `mesh_dim` have the ranges `has`. This mesh dimension alone shards its
/// first dimension. Differentiable.
at::Tensor even_shard(
    const at::Tensor& rows,
    std::vector<Interval> has,
    const SpecPtr& spec,
    int64_t mesh_dim);

/// Returns true if select_on_shards() computes x[mask]: DTensors of one mesh,
/// of which one is not replicated, and a mask of the first dimensions of x.
bool selects_on_shards(const at::Tensor& self, const at::Tensor& mask);

/// Returns x[mask] for the arguments "self" and `mask_name` of an operator.
/// Each rank selects from its rows. Differentiable.
at::Tensor select_on_shards(
    const c10::OperatorHandle& op,
    const at::Tensor& self,
    const at::Tensor& mask,
    const char* mask_name);

} // namespace dtensor::detail
