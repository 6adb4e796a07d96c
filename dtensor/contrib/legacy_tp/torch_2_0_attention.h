// SPDX-License-Identifier: BSD-3-Clause
// TensorParallelMultiheadAttention: self-attention of PyTorch 2.0, which
// PairwiseParallel shards by heads.
//
//   struct BlockImpl : torch::nn::Module {
//     torch_2_0::TensorParallelMultiheadAttention attn{width, heads};
//     BlockImpl() { register_module("attn", attn); }
//     ...
//   };
//   block->attn->copy(pretrained->attn);
//   torch_2_0::parallelize_module(
//       *block, mesh, {{"attn", torch_2_0::PairwiseParallel()}});
//
// Python replaces every nn.MultiheadAttention with this class. Here
// torch::nn::MultiheadAttention can be parallelized as it is
// (attention_parallel.h), and a program that wants this class declares it.
#pragma once

#include <dtensor/api.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_module_holder.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <vector>

namespace torch::nn {
class MultiheadAttention;
}

namespace dtensor::torch_2_0 {

/// Options for TensorParallelMultiheadAttention. Python's add_zero_attn, kdim,
/// vdim and batch_first, which have no effect there, do not exist here. Use
/// to() for device and dtype.
struct AttentionOptions {
  /// Dropout of attention probabilities in training. (No effect in Python.)
  double dropout = 0;
  /// Adds a bias to the output projection.
  bool bias = true;
  /// Adds a bias to the query, key and value projections, as in Python.
  bool add_bias_kv = false;
  /// Intended number of ranks, as in Python. The mesh determines the actual
  /// number, and the number of heads need not be divisible by either (in Python
  /// it must).
  int64_t tp_size = 1;
  /// If true, one projection, `qkv`, of one input. If false, three projections,
  /// `query`, `key` and `value`, of three inputs, which are also parallelized
  /// (not in Python).
  bool self_attention = true;
};

/// Attention of inputs (batch, sequence, embed_dim): softmax(q k / sqrt(d)) v
/// per head, without masks, projected by `proj`. The rows of qkv's weight, (3 *
/// embed_dim, embed_dim), are ordered by head, then query, key and value, so
/// that a rank's rows are complete heads.
/// Python: torch.distributed.tensor.parallel.multihead_attention_tp.
/// TensorParallelMultiheadAttention of 2.0.
class DTENSOR_API TensorParallelMultiheadAttentionImpl
    : public torch::nn::Cloneable<TensorParallelMultiheadAttentionImpl> {
 public:
  /// Throws ValueError if embed_dim is not divisible by num_heads, or
  /// options.tp_size is below 1.
  TensorParallelMultiheadAttentionImpl(
      int64_t embed_dim,
      int64_t num_heads,
      const AttentionOptions& options = {});

  void reset() override;

  /// Returns (batch, sequence, embed_dim), like `q`. Self-attention takes only
  /// `q`, or the same tensor three times. Throws ValueError for other inputs.
  at::Tensor forward(
      const at::Tensor& q,
      const at::Tensor& k = {},
      const at::Tensor& v = {});

  /// Copies the parameter values and the dropout of `that`. Adds or removes
  /// biases so that this module has those of `that`. Afterwards this module
  /// computes the same as `that`, which takes inputs (sequence, batch,
  /// embed_dim). Unlike Python, reorders the rows as this module requires.
  /// Replaces the parameters, so copy before creating an optimizer. Throws
  /// ValueError for another embed_dim or num_heads, NotImplementedError for
  /// add_bias_kv of torch::nn, add_zero_attn, kdim and vdim, and RuntimeError
  /// if either module is already parallelized.
  void copy(const torch::nn::MultiheadAttention& that);

  /// Number of heads over all ranks.
  int64_t num_heads() const {
    return num_heads_;
  }
  /// Returns the Linears that are sharded by columns: qkv, or query, key and
  /// value.
  std::vector<torch::nn::Linear> projections() const;

  /// Input projections: `qkv` with self_attention, else `query`, `key` and
  /// `value`; unused ones are null. `proj` is the output projection.
  torch::nn::Linear qkv{nullptr};
  torch::nn::Linear query{nullptr}, key{nullptr}, value{nullptr};
  torch::nn::Linear proj{nullptr};

 protected:
  FORWARD_HAS_DEFAULT_ARGS(
      {1, torch::nn::AnyValue(at::Tensor())},
      {2, torch::nn::AnyValue(at::Tensor())})

 private:
  torch::nn::Linear make(const char* name, int64_t out_features, bool bias);
  void check_inputs(
      const at::Tensor& q,
      const at::Tensor& k,
      const at::Tensor& v) const;
  void check_copy(const torch::nn::MultiheadAttention& that) const;
  std::vector<at::Tensor> heads_of(const at::Tensor& t, int64_t parts) const;

  int64_t embed_dim_;
  int64_t num_heads_;
  AttentionOptions options_;
};

/// Module holder.
TORCH_MODULE(TensorParallelMultiheadAttention);

} // namespace dtensor::torch_2_0
