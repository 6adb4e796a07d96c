// SPDX-License-Identifier: BSD-3-Clause
// scaled_dot_product_attention in a context_parallel scope.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/operator_name.h>
#include <dtensor/parallel/context_scope_impl.h>
#include <dtensor/parallel/ring_attention_impl.h>

#include <optional>

namespace dtensor::detail {

/// The operator's arguments.
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

/// Throws NotImplementedError for a mask or dropout, ValueError for tensors
/// whose sizes or dtypes do not fit each other.
void check_context_call(const AttentionArgs& args);

/// Attention of plain parts, of any number of batch dimensions, of a sequence
/// in which the ranks hold these tokens.
at::Tensor attend_parts(
    const AttentionArgs& args,
    const ContextRanks& ranks,
    const TokensOfRanks& queries,
    const TokensOfRanks& keys,
    RotateMethod method);

/// The mesh dimension of DTensors on which one of them is cut along its
/// sequence over the ranks of the scope, if there is one.
std::optional<int64_t> dim_of_tokens(
    const AttentionArgs& args,
    const ContextScope& scope);

/// Whether a scope of this rank computes this call of an operator on DTensors.
bool is_computed_in_context(
    const c10::OperatorName& op,
    c10::ArrayRef<c10::IValue> args);

/// Attention of DTensors; nothing if none is cut along its sequence over the
/// ranks of the scope.
std::optional<at::Tensor> attend_dtensors(
    const AttentionArgs& args,
    const ContextScope& scope);

} // namespace dtensor::detail
