// SPDX-License-Identifier: BSD-3-Clause
// Batches of matrices: strategies and result shapes of linear algebra.
#pragma once

#include <dtensor/ops/strategy.h>

#include <cstdint>
#include <vector>

namespace dtensor::detail {

/// Numbers of dimensions at the end of each tensor that are not batches: 2 for
/// matrices, 1 for vectors, 0 for numbers.
struct Batched {
  std::vector<int64_t> inputs;
  std::vector<int64_t> outputs;
  /// Inputs in which the first result is linear. Partial sums of these inputs
  /// are kept. The other results do not depend on these inputs.
  std::vector<size_t> linear = {};
};

/// Returns the strategies that shard a batch dimension in all tensors that have
/// this dimension. A tensor that is broadcast along it is replicated.
Strategies
batch_strategies(const OpCall& call, const Batched& ranks, int64_t mesh_dim);

// Result shapes of operators that have no meta kernel in C++.

/// Returns one column-major matrix with the shape and dtype of the (square)
/// first input.
std::vector<OutputMeta> square_meta(const OpCall& call);
/// As square_meta(). An empty tensor may also have fewer dimensions.
std::vector<OutputMeta> cholesky_meta(const OpCall& call);
std::vector<OutputMeta> matrix_exp_meta(const OpCall& call);
std::vector<OutputMeta> geqrf_meta(const OpCall& call);
std::vector<OutputMeta> householder_meta(const OpCall& call);
std::vector<OutputMeta> ormqr_meta(const OpCall& call);
std::vector<OutputMeta> eig_meta(const OpCall& call);
std::vector<OutputMeta> eigvals_meta(const OpCall& call);
std::vector<OutputMeta> pinv_meta(const OpCall& call);
std::vector<OutputMeta> matrix_rank_meta(const OpCall& call);
/// Returns the solution of a system with broadcast batches.
std::vector<OutputMeta> solved_meta(const OpCall& call);
std::vector<OutputMeta> cholesky_solved_meta(const OpCall& call);
std::vector<OutputMeta> cdist_meta(const OpCall& call);
std::vector<OutputMeta> cdist_backward_meta(const OpCall& call);

} // namespace dtensor::detail
