// SPDX-License-Identifier: BSD-3-Clause
// Strategies of batches, and result shapes of linear algebra.
#include <dtensor/ops/rules/linalg_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/rules/pointwise_impl.h>
#include <dtensor/ops/rules/shapes_impl.h>

#include <ATen/ExpandUtils.h>
#include <c10/core/ScalarType.h>

#include <algorithm>

namespace dtensor::detail {
namespace {

// Returns the batch dimensions of a tensor: all except the last `rank`.
SizesRef batch_of(SizesRef sizes, int64_t rank) {
  return sizes.slice(0, sizes.size() - static_cast<size_t>(rank));
}

int64_t size_from_end(SizesRef sizes, int64_t from_end) {
  return sizes[sizes.size() - static_cast<size_t>(from_end)];
}

// Returns the broadcast batch dimensions of the inputs. Throws if they do not
// broadcast.
std::vector<int64_t> common_batch(const OpCall& call, const Batched& ranks) {
  std::vector<int64_t> batch;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    batch = at::infer_size(
        batch, batch_of(call.inputs[i].sizes(), ranks.inputs[i]));
  }
  return batch;
}

// Returns true if the batches of the inputs broadcast. An operator may ignore
// an operand that does not fit, such as the pivots of lu_unpack.
bool have_common_batch(const OpCall& call, const Batched& ranks) {
  std::vector<int64_t> batch;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (call.inputs[i].dim() < ranks.inputs[i]) {
      return false;
    }
    const auto own = batch_of(call.inputs[i].sizes(), ranks.inputs[i]);
    if (!at::are_expandable(batch, own)) {
      return false;
    }
    batch = at::infer_size(batch, own);
  }
  return true;
}

// Checks that input `i` has at least `rank` dimensions.
const Spec& checked(const OpCall& call, size_t i, int64_t rank) {
  const auto& spec = *call.inputs[i].spec;
  DTENSOR_CHECK(
      spec.dim() >= rank,
      "[{}] needs a tensor with at least {}, got {}. Add dimensions.",
      call.name(),
      pluralize(static_cast<size_t>(rank), "dimension"),
      spec);
  return spec;
}

// Checks that the first inputs, matrices and vectors, have the same batches.
void check_same_batch(const OpCall& call, const std::vector<int64_t>& ranks) {
  const auto first = batch_of(checked(call, 0, ranks[0]).sizes(), ranks[0]);
  for (size_t i = 1; i < ranks.size(); ++i) {
    const auto& spec = checked(call, i, ranks[i]);
    DTENSOR_CHECK(
        batch_of(spec.sizes(), ranks[i]) == first,
        "[{}] needs operands with the same batch dimensions, got {} and {}. "
        "Expand them.",
        call.name(),
        *call.inputs[0].spec,
        spec);
  }
}

Sizes with_end(SizesRef batch, std::initializer_list<int64_t> end) {
  Sizes sizes(batch);
  sizes.append(end.begin(), end.end());
  return sizes;
}

// Returns column-major matrices, as LAPACK writes them.
OutputMeta column_major(SizesRef sizes, at::ScalarType dtype) {
  auto meta = dense(sizes, dtype);
  const auto n = sizes.size();
  meta.strides[n - 2] = 1;
  meta.strides[n - 1] = std::max<int64_t>(sizes[n - 2], 1);
  return meta;
}

// Returns the matrices of input `rhs` with broadcast batches.
std::vector<OutputMeta> solved(const OpCall& call, size_t rhs) {
  checked(call, 0, 2);
  checked(call, 1, 2);
  const auto& b = *call.inputs[rhs].spec;
  const auto batch = common_batch(call, {.inputs = {2, 2}, .outputs = {2}});
  const auto sizes = with_end(
      batch, {size_from_end(b.sizes(), 2), size_from_end(b.sizes(), 1)});
  return {column_major(sizes, b.dtype())};
}

} // namespace

Strategies
batch_strategies(const OpCall& call, const Batched& ranks, int64_t mesh_dim) {
  if (!have_common_batch(call, ranks)) {
    return {};
  }
  const auto batch = common_batch(call, ranks);
  Strategies strategies;
  for (int64_t d = 0; d < static_cast<int64_t>(batch.size()); ++d) {
    const auto place = [&](SizesRef sizes, int64_t rank) {
      // A result that was not requested may have fewer dimensions.
      const auto own = std::max(static_cast<int64_t>(sizes.size()), rank);
      return operand_shard(
          sizes.slice(0, static_cast<size_t>(own - rank)), batch, d);
    };
    Strategy s;
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      s.inputs.push_back(place(call.inputs[i].sizes(), ranks.inputs[i]));
    }
    for (size_t i = 0; i < call.outputs.size(); ++i) {
      s.outputs.push_back(place(call.outputs[i].sizes, ranks.outputs[i]));
    }
    strategies.push_back(std::move(s));
  }
  // Beside an average, the gradient of a replicated operand would be an
  // average, but regions assume a sum.
  add_linear(call, ranks.linear, {ReduceOp::kSum}, mesh_dim, strategies);
  return strategies;
}

std::vector<OutputMeta> square_meta(const OpCall& call) {
  const auto& self = checked(call, 0, 2);
  return {column_major(self.sizes(), self.dtype())};
}

std::vector<OutputMeta> cholesky_meta(const OpCall& call) {
  return call.inputs[0].spec->numel() == 0 ? dense_like_first(call)
                                           : square_meta(call);
}

std::vector<OutputMeta> matrix_exp_meta(const OpCall& call) {
  return {dense_like(checked(call, 0, 2))};
}

std::vector<OutputMeta> geqrf_meta(const OpCall& call) {
  const auto& self = checked(call, 0, 2);
  const auto sizes = self.sizes();
  const auto k = std::min(size_from_end(sizes, 1), size_from_end(sizes, 2));
  return {
      column_major(sizes, self.dtype()),
      dense(with_end(batch_of(sizes, 2), {k}), self.dtype())};
}

std::vector<OutputMeta> householder_meta(const OpCall& call) {
  check_same_batch(call, {2, 1});
  return square_meta(call);
}

std::vector<OutputMeta> ormqr_meta(const OpCall& call) {
  check_same_batch(call, {2, 1, 2});
  const auto& other = *call.inputs[2].spec;
  return {column_major(other.sizes(), other.dtype())};
}

std::vector<OutputMeta> eigvals_meta(const OpCall& call) {
  const auto& self = checked(call, 0, 2);
  const auto n = size_from_end(self.sizes(), 1);
  return {dense(
      with_end(batch_of(self.sizes(), 2), {n}),
      c10::toComplexType(self.dtype()))};
}

std::vector<OutputMeta> eig_meta(const OpCall& call) {
  auto metas = eigvals_meta(call);
  metas.push_back(column_major(call.inputs[0].sizes(), metas[0].dtype));
  return metas;
}

// Tolerances broadcast with the batch, except of an empty matrix.
std::vector<OutputMeta> pinv_meta(const OpCall& call) {
  const auto& self = checked(call, 0, 2);
  const auto sizes = self.sizes();
  const auto batch = self.numel() == 0
      ? batch_of(sizes, 2).vec()
      : common_batch(call, {.inputs = {2, 0, 0}, .outputs = {2}});
  return {dense(
      with_end(batch, {size_from_end(sizes, 1), size_from_end(sizes, 2)}),
      self.dtype())};
}

// Returns a number for each matrix. LibTorch ignores the tolerances of empty
// matrices.
std::vector<OutputMeta> matrix_rank_meta(const OpCall& call) {
  const auto& self = checked(call, 0, 2);
  const auto own = batch_of(self.sizes(), 2);
  const auto batch = self.numel() == 0
      ? own.vec()
      : common_batch(call, {.inputs = {2, 0, 0}, .outputs = {0}});
  return {dense(batch, at::kLong)};
}

std::vector<OutputMeta> solved_meta(const OpCall& call) {
  auto result = solved(call, 1);
  result[0].dtype = call.inputs[0].spec->dtype();
  return result;
}

std::vector<OutputMeta> cholesky_solved_meta(const OpCall& call) {
  return solved(call, 0);
}

std::vector<OutputMeta> cdist_meta(const OpCall& call) {
  const auto& a = checked(call, 0, 2);
  const auto& b = checked(call, 1, 2);
  const auto batch = common_batch(call, {.inputs = {2, 2}, .outputs = {2}});
  const auto sizes = with_end(
      batch, {size_from_end(a.sizes(), 2), size_from_end(b.sizes(), 2)});
  return {dense(sizes, c10::promoteTypes(a.dtype(), b.dtype()))};
}

std::vector<OutputMeta> cdist_backward_meta(const OpCall& call) {
  const auto& x1 = checked(call, 1, 2);
  const auto& x2 = checked(call, 2, 2);
  const auto batch =
      at::infer_size(batch_of(x1.sizes(), 2), batch_of(x2.sizes(), 2));
  const auto sizes = with_end(
      batch, {size_from_end(x1.sizes(), 2), size_from_end(x1.sizes(), 1)});
  return {dense(sizes, x1.dtype())};
}

} // namespace dtensor::detail
