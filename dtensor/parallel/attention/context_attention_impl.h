// SPDX-License-Identifier: BSD-3-Clause
// State of a context_parallel scope, and scaled_dot_product_attention in it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/operator_name.h>
#include <dtensor/api.h>
#include <dtensor/parallel/attention/ring_attention_impl.h>
#include <dtensor/parallel/context_parallel.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace dtensor::detail {

struct ContextScope {
  /// Tensor of the program that is replaced by its shard during the scope.
  struct Buffer {
    at::Tensor tensor;
    at::Tensor unsharded;
  };

  DeviceMesh mesh; // 1-D
  RotateMethod method = RotateMethod::kAllGather;
  bool balanced = false;
  /// Length of the full sequence, if there are buffers.
  std::optional<int64_t> length = std::nullopt;
  std::vector<Buffer> buffers = {};
};

/// Returns the innermost scope of this rank, or null.
const ContextScope* current_context();

/// Turns the lookup of scopes in attention of this thread on or off, and
/// returns the previous setting. Always on for ranks that are threads.
bool watch_attention(bool watched);

/// Suspends all scopes of this rank during its lifetime.
class OutsideContext {
 public:
  OutsideContext();
  ~OutsideContext();
  OutsideContext(const OutsideContext&) = delete;
  OutsideContext& operator=(const OutsideContext&) = delete;
};

/// True if this rank's innermost open scope on these ranks is balanced. Without
/// an open scope: if the latest scope was balanced.
bool was_balanced(const DeviceMesh& mesh);

/// Throws ValueError unless `mesh` is 1-D, and RuntimeError on a rank outside
/// of the mesh.
void check_context_mesh(const char* where, const DeviceMesh& mesh);

/// Returns `dim` of buffer number `index`, wrapped to be non-negative. Throws
/// IndexError if it is out of range.
int64_t
seq_dim(const char* where, const at::Tensor& buffer, size_t index, int64_t dim);

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
