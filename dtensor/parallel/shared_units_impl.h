// SPDX-License-Identifier: BSD-3-Clause
// Units of a Linear's output that several units of another one use: the heads
// of keys and values in grouped-query attention. Where ranks have parts of a
// group of queries, each computes what its own queries need:
//
//   8 query heads, 2 of keys, on 4 ranks:   0 | 0 | 1 | 1
//   9 query heads, 3 of keys, on 2 ranks:   0 0 0 1 1 | 1 2 2 2
#pragma once

#include <dtensor/api.h>
#include <dtensor/layout/mesh.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace dtensor::detail {

struct DTENSOR_API SharedUnits {
  int64_t unit = 1;  // features of one
  int64_t count = 0; // how many there are
  int64_t users = 0; // and who share them, a multiple; 0: nobody does

  /// Those of a rank, in order: each as often as a call needs in which so many
  /// users follow each other that the same number of them has each.
  std::vector<int64_t> of_rank(int64_t ranks, int64_t rank) const;
  /// Whether every rank has what Shard(dim, unit) gives it.
  bool is_cut(int64_t ranks) const;
  /// Whether all ranks have equally many.
  bool is_even(int64_t ranks) const;

  friend bool operator==(const SharedUnits&, const SharedUnits&) = default;
};

/// This rank's units of `input` (..., K) R times `weight_t` (K, N) R, plus
/// `bias` (N) R if it is defined: a plain tensor. Differentiable; the gradients
/// are P(sum).
at::Tensor shared_linear(
    const at::Tensor& input,
    const at::Tensor& weight_t,
    const at::Tensor& bias,
    const SharedUnits& shared);

/// The same of a bias alone.
at::Tensor shared_bias(const at::Tensor& bias, const SharedUnits& shared);

} // namespace dtensor::detail
