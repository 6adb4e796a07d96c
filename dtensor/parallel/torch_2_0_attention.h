// SPDX-License-Identifier: BSD-3-Clause
// TensorParallelMultiheadAttention: self-attention that PairwiseParallel makes
// parallel by heads, as PyTorch 2.0 had it.
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
// Python puts it in the place of every nn.MultiheadAttention. Here that is made
// parallel as it is (attention_parallel.h), and who wants this one declares it.
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

/// Python's add_zero_attn, kdim, vdim and batch_first, which do nothing there,
/// are not here; for device and dtype there is to().
struct AttentionOptions {
  /// Of attention probabilities, while training. (Python drops nothing.)
  double dropout = 0;
  /// A bias of the projection of the output.
  bool bias = true;
  /// A bias of the projections of query, key and value: in Python, too, that is
  /// what this class takes the name for.
  bool add_bias_kv = false;
  /// The number of ranks that it is meant for, as Python has it. On how many it
  /// runs the mesh says, and the heads need not divide by either (in Python
  /// they do).
  int64_t tp_size = 1;
  /// One projection, `qkv`, of one input; else `query`, `key` and `value` of
  /// three, which become parallel alike (in Python they do not).
  bool self_attention = true;
};

/// Attention of inputs (batch, sequence, embed_dim): softmax(q k / sqrt(d)) v
/// of each head, without masks, projected by `proj`. The rows of qkv's weight,
/// (3 * embed_dim, embed_dim), are ordered by head, then query, key and value,
/// so that a rank's rows are whole heads.
/// Python: torch.distributed.tensor.parallel.multihead_attention_tp.
/// TensorParallelMultiheadAttention of 2.0.
class DTENSOR_API TensorParallelMultiheadAttentionImpl
    : public torch::nn::Cloneable<TensorParallelMultiheadAttentionImpl> {
 public:
  /// Throws ValueError if embed_dim does not divide by num_heads, or
  /// options.tp_size is below 1.
  TensorParallelMultiheadAttentionImpl(
      int64_t embed_dim,
      int64_t num_heads,
      const AttentionOptions& options = {});

  void reset() override;

  /// (batch, sequence, embed_dim) of all of them, of the shape of `q`.
  /// Self-attention takes `q` alone, or the same tensor three times. Throws
  /// ValueError for other inputs.
  at::Tensor forward(
      const at::Tensor& q,
      const at::Tensor& k = {},
      const at::Tensor& v = {});

  /// Takes the values of `that`, its biases and its dropout, so that this
  /// module gives what `that` does of inputs (sequence, batch, embed_dim):
  /// rows are brought into the order of this one, which Python does not do.
  /// Parameters are made anew, so copy before an optimizer is made. Throws
  /// ValueError for another embed_dim or num_heads, NotImplementedError for
  /// biases of the sequences (add_bias_kv of torch::nn), add_zero_attn, kdim
  /// and vdim, RuntimeError if one of the two is parallel already.
  void copy(const torch::nn::MultiheadAttention& that);

  /// Of the whole module, not of this rank.
  int64_t num_heads() const {
    return num_heads_;
  }
  /// The Linears whose columns are cut: qkv, or query, key and value.
  std::vector<torch::nn::Linear> projections() const;

  /// With self_attention `qkv`, else `query`, `key` and `value`; the others are
  /// null. `proj` makes the output.
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

/// The holder of the module.
TORCH_MODULE(TensorParallelMultiheadAttention);

} // namespace dtensor::torch_2_0
