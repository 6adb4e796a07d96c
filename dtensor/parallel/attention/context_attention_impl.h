// SPDX-License-Identifier: BSD-3-Clause
// scaled_dot_product_attention inside a context_parallel scope.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/operator_name.h>
#include <dtensor/api.h>
#include <dtensor/parallel/attention/context_scope_impl.h>
#include <dtensor/parallel/attention/ring_attention_impl.h>

#include <optional>

namespace dtensor::detail {

/// Arguments of scaled_dot_product_attention.
struct AttentionArgs {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
  std::optional<at::Tensor> mask = std::nullopt;
  double dropout = 0;
  bool causal = false;
  std::optional<double> scale = std::nullopt;
  bool grouped = false;
};

/// Throws NotImplementedError for a mask or dropout, and ValueError for sizes
/// or dtypes that do not match.
void check_context_call(const AttentionArgs& args);

/// Computes attention of plain local shards with any number of batch
/// dimensions. `queries` and `keys` assign the sequence's tokens to ranks.
at::Tensor attend_local_shards(
    const AttentionArgs& args,
    const ContextRanks& ranks,
    const TokensOfRanks& queries,
    const TokensOfRanks& keys,
    RotateMethod method);

/// Returns the mesh dimension on which one of the DTensors is sharded along its
/// sequence over the ranks of the scope; empty if there is none.
std::optional<int64_t> dim_of_tokens(
    const AttentionArgs& args,
    const ContextScope& scope);

/// True if a scope of this rank computes this call of an operator on DTensors.
DTENSOR_INTERNAL_API bool is_computed_in_context(
    const c10::OperatorName& op,
    c10::ArrayRef<c10::IValue> args);

/// Computes attention of DTensors. Returns nullopt if no DTensor is sharded
/// along its sequence over the ranks of the scope.
std::optional<at::Tensor> attend_dtensors(
    const AttentionArgs& args,
    const ContextScope& scope);

} // namespace dtensor::detail
