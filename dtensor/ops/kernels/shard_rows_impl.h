// SPDX-License-Identifier: BSD-3-Clause
// ShardRows: the rows of a shard along a sharded dimension, for kernels that
// return values and their indices (sort, topk, kthvalue, medians).
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/strategy.h>

namespace dtensor::detail {

/// The operand "self" of a call, as rows along its argument "dim".
struct ShardRows {
  ShardRows(const KernelArgs& args, const Decision& decision);

  /// Returns `t`, (rows, count), as a tensor of the operand's dimensions, of
  /// which `dim` has `count` elements.
  at::Tensor restored(const at::Tensor& t) const;

  at::Tensor shard;
  SpecPtr spec; // layout of the operand
  int64_t dim;
  int64_t size;    // global size of `dim`
  at::Tensor rows; // (rows, local size)
};

/// Returns values and indices without data if the operand "self" has none.
/// Returns true if it did.
bool return_without_data(KernelArgs& args, const Decision& decision);

} // namespace dtensor::detail
