// SPDX-License-Identifier: BSD-3-Clause
// Rows that are sharded over the ranks of a group, for kernels that return
// values and their indices (sort, topk, kthvalue, medians). For rows that are
// sorted on each rank, also the positions at which a global sort would divide
// them.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/sort.h>
#include <dtensor/comm/group.h>
#include <dtensor/layout/spec.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/strategy.h>

#include <tuple>

namespace dtensor::detail {

/// Returns int64 keys with the order of the elements: NaN is greatest, and -0
/// equals 0. With `descending`, the order is reversed.
at::Tensor order_keys(const at::Tensor& t, bool descending);

/// Sorts along `dim`, in ascending order. Equal elements keep their order.
inline std::tuple<at::Tensor, at::Tensor> stable_sort(
    const at::Tensor& t,
    int64_t dim) {
  return at::sort(t, /*stable=*/true, dim, /*descending=*/false);
}

/// Returns the first mesh dimension that shards tensor dimension `dim`.
inline int64_t mesh_dim_sharding(const Spec& spec, int64_t dim) {
  int64_t m = 0;
  while (!spec.placements()[static_cast<size_t>(m)].is_sharded(dim)) {
    ++m;
  }
  return m;
}

/// Rows of this rank, (rows, local size). Ranks hold consecutive ranges of the
/// global index, in rank order.
struct SortedRows {
  at::Tensor keys;           // sorted
  at::Tensor indices;        // global; ascending where keys are equal
  int64_t size = 0;          // global size
  int64_t largest_shard = 0; // largest local size of any rank
};

/// Returns the positions at which this rank's sorted rows divide into the
/// shards of the global sort. Entry (row, r) is the number of local elements
/// that sort before the global position r * rows.largest_shard. The result is
/// (rows, ranks + 1), from 0 to the local size.
/// Ranks exchange samples, and few elements around each position: about the
/// square root of the number of elements.
at::Tensor split_positions(const SortedRows& rows, Group& group);

/// Returns the global indices of the elements at the positions `wanted`, (rows,
/// count), of the globally sorted rows. Ranks exchange as many elements as in
/// split_positions().
at::Tensor
indices_at(const SortedRows& rows, const at::Tensor& wanted, Group& group);

/// The operand "self" of a call, as rows along its argument "dim".
struct ShardRows {
  ShardRows(const KernelArgs& args, const Decision& decision);

  /// Returns `t`, (rows, count), with the dimensions of the operand, where
  /// `dim` has `count` elements.
  at::Tensor restored(const at::Tensor& t) const;

  at::Tensor shard;
  SpecPtr spec; // layout of the operand
  int64_t dim;
  int64_t size;    // global size of `dim`
  at::Tensor rows; // (rows, local size)
};

/// Returns values and indices without data if the operand "self" has no data.
/// Returns true in this case.
bool return_without_data(KernelArgs& args, const Decision& decision);

} // namespace dtensor::detail
