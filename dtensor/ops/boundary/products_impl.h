// SPDX-License-Identifier: BSD-3-Clause
// Products of a styled Linear that the operator does not compute itself: with
// units that ranks share, and in chunks.
//
// SharedUnits: units of a Linear's output that several units of another Linear
// share, as query heads share key/value heads in grouped-query attention. If
// query groups are split over ranks, each rank computes the units that its own
// queries need:
//
//   8 query heads, 2 of keys, on 4 ranks:   0 | 0 | 1 | 1
//   9 query heads, 3 of keys, on 2 ranks:   0 0 0 1 1 | 1 2 2 2
#pragma once

#include <dtensor/api.h>
#include <dtensor/layout/mesh.h>
#include <dtensor/layout/placement.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace dtensor::detail {

struct DTENSOR_API SharedUnits {
  int64_t unit = 1;  // features per unit
  int64_t count = 0; // number of units
  int64_t users = 0; // number of users (a multiple of count); 0: none

  /// Returns the units of a rank in order. Units are repeated so that each is
  /// used by the same number of consecutive users, as the attention operator
  /// requires.
  std::vector<int64_t> of_rank(int64_t ranks, int64_t rank) const;
  /// True if every rank has exactly the units of its shard of Shard(dim, unit).
  bool is_sharded_by_units(int64_t ranks) const;
  /// True if all ranks have the same number of units.
  bool is_even(int64_t ranks) const;

  friend bool operator==(const SharedUnits&, const SharedUnits&) = default;
};

/// Returns this rank's units of `input` (..., K) R times `weight_t` (K, N) R,
/// plus `bias` (N) R if defined, as a plain tensor. Differentiable; the
/// gradients are P(sum).
at::Tensor shared_linear(
    const at::Tensor& input,
    const at::Tensor& weight_t,
    const at::Tensor& bias,
    const SharedUnits& shared);

/// Returns this rank's units of a bias (N).
at::Tensor shared_bias(const at::Tensor& bias, const SharedUnits& shared);

/// Linear with a weight sharded along the input features, computed in chunks of
/// rows: the all-reduce of one chunk overlaps with the product of the next.
/// Returns `input` (..., K) S(-1) times `weight_t` (K, N) S(0), plus `bias` (N)
/// R if defined: a DTensor (..., N) in layout `output`, reduced in `chunks`
/// chunks of the first dimension. Returns an undefined tensor, and does
/// nothing, in unsupported cases: other layouts or dtypes, fewer than two rows,
/// or an output that is sharded along the rows. Differentiable; the gradient is
/// not chunked.
at::Tensor overlapped_linear(
    const at::Tensor& input,
    const at::Tensor& weight_t,
    const at::Tensor& bias,
    const Placement& output,
    int64_t chunks);

} // namespace dtensor::detail
