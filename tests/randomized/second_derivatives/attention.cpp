// SPDX-License-Identifier: BSD-3-Clause
// Attention: torch::nn's modules with sharded heads, and the operator on a
// sharded sequence.
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/util/StringUtil.h>
#include <dtensor/contrib/legacy_tp/torch_2_0.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/attention_parallel.h>
#include <dtensor/parallel/context_parallel.h>
#include <dtensor/parallel/linear_styles.h>
#include <dtensor/tensor/dtensor.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/transformerlayer.h>

#include <optional>

#include "styled.h"

namespace dtensor::second_derivatives {
namespace {

// Self-attention of (T, B, E).
struct SelfAttentionImpl : torch::nn::Module {
  SelfAttentionImpl(int64_t width, int64_t heads, bool bias)
      : attn(register_module(
            "attn",
            torch::nn::MultiheadAttention(
                torch::nn::MultiheadAttentionOptions(width, heads)
                    .bias(bias)))) {}
  at::Tensor forward(const at::Tensor& x) {
    return std::get<0>(
        attn->forward(x, x, x, at::Tensor(), /*need_weights=*/false));
  }
  torch::nn::MultiheadAttention attn;
};
TORCH_MODULE(SelfAttention);

struct Heads {
  int64_t count;
  int64_t width; // of all heads
  bool bias;
};

std::function<torch::nn::Sequential()> self_attention(const Heads& h) {
  return [h] {
    return torch::nn::Sequential(SelfAttention(h.width, h.count, h.bias));
  };
}

Styled of_today(const Heads& h, Random& random) {
  const auto output = draw_output(3, random);
  const bool local = random.chance(50);
  return {
      c10::str("attention of ", h.count, " heads to ", to_string(output)),
      self_attention(h),
      {{"0.attn",
        AttentionParallel(
            {.output_layouts = output, .use_local_output = local})}},
      Replicate(),
      output,
      local};
}

Styled of_2_0(const Heads& h, Random& random) {
  const bool local = random.chance(50);
  return {
      c10::str("Pairwise attention of ", h.count, " heads"),
      self_attention(h),
      {{"0.attn", torch_2_0::PairwiseParallel({.use_local_output = local})}},
      Replicate(),
      Replicate(),
      local,
      /*as_in_2_0=*/true};
}

Styled encoder_layer(const Heads& h, Random& random) {
  const auto hidden = 2 + random.below(6);
  return {
      c10::str("encoder layer of ", h.count, " heads"),
      [=] {
        return torch::nn::Sequential(torch::nn::TransformerEncoderLayer(
            torch::nn::TransformerEncoderLayerOptions(h.width, h.count)
                .dim_feedforward(hidden)
                .dropout(0)
                .activation(torch::kGELU)));
      },
      {{"0.self_attn", AttentionParallel()},
       {"0.linear1", ColwiseParallel({.use_local_output = false})},
       {"0.linear2", RowwiseParallel()}},
      Replicate(),
      Replicate()};
}

Program module_attention(const std::vector<int64_t>& mesh, Random& random) {
  const auto seed = static_cast<uint64_t>(random.below(1 << 20));
  const auto count = 1 + random.below(4);
  const Heads heads = {count, count * (1 + random.below(3)), random.chance(60)};
  using Draw = Styled (*)(const Heads&, Random&);
  static const std::vector<Draw> draws = {
      of_today, of_today, of_2_0, encoder_layer};
  const auto draw = random.one_of(draws);
  Given given{random.chance(50), 0};
  given.local |= draw == encoder_layer; // its norms have plain parameters
  const std::vector<int64_t> shape = {
      1 + random.below(4), 1 + random.below(3), heads.width};
  auto program = program_of(
      draw(heads, random), uniform(shape, seed + 50), shape, given, seed);
  program.layouts = {draw_layout(3, true, mesh, random)};
  return program;
}

struct ContextCall {
  RotateMethod method;
  bool causal;
  bool grouped;
  bool local;    // local shards instead of DTensors
  int64_t other; // dimension sharded on the second mesh dimension
};

const char* name_of(RotateMethod method) {
  return method == RotateMethod::kAllGather ? "allgather"
      : method == RotateMethod::kAllToAll   ? "alltoall"
                                            : "ulysses";
}

at::Tensor attend(const Tensors& t, const ContextCall& call) {
  return at::scaled_dot_product_attention(
      t[0], t[1], t[2], {}, 0, call.causal, {}, call.grouped);
}

at::Tensor attend_cut(
    const Tensors& operands,
    const ContextCall& call,
    const DeviceMesh& mesh) {
  Placements cut(static_cast<size_t>(mesh.ndim()), Shard(call.other));
  cut[0] = Shard(2);
  Tensors parts;
  for (const auto& operand : operands) {
    const auto part = DTensor(operand).redistribute(cut);
    parts.push_back(call.local ? to_local(part) : at::Tensor(part));
  }
  const auto scope = context_parallel(
      mesh.ndim() == 1 ? mesh : mesh["a"], {.rotate_method = call.method});
  const auto out = attend(parts, call);
  if (!call.local) {
    return out;
  }
  auto sizes = operands[0].sizes().vec();
  sizes.back() = operands[2].size(-1);
  FromLocalOptions options;
  options.shape = sizes;
  return DTensor::from_local(out, mesh, cut, options);
}

// Draws calls in a context. Methods that rotate keys refuse second derivatives,
// so more than half of the calls exchange heads.
Program context_attention(const std::vector<int64_t>& mesh, Random& random) {
  const auto seed = static_cast<uint64_t>(random.below(1 << 20));
  ContextCall call{};
  call.method = random.chance(70) ? RotateMethod::kUlysses
      : random.chance(50)         ? RotateMethod::kAllGather
                                  : RotateMethod::kAllToAll;
  call.causal = random.chance(50);
  call.grouped = random.chance(40);
  call.local = mesh.size() == 1 && random.chance(40);
  call.other = random.chance(50) ? 0 : 1;
  const auto key_heads = 1 + random.below(4);
  const auto heads = key_heads * (call.grouped ? 1 + random.below(3) : 1);
  const auto batch = 1 + random.below(3);
  const auto width = 1 + random.below(3);
  // Local shards without buffers must have equal lengths.
  const auto tokens =
      call.local ? mesh[0] * (1 + random.below(3)) : 1 + random.below(8);
  Program program;
  program.name = c10::str(
      "context_parallel by ",
      name_of(call.method),
      call.causal ? ", causal" : "",
      call.grouped ? ", grouped" : "",
      call.local ? ", parts" : "");
  program.operands = {
      uniform({batch, heads, tokens, width}, seed),
      uniform({batch, key_heads, tokens, width}, seed + 1),
      uniform({batch, key_heads, tokens, 1 + random.below(3)}, seed + 2)};
  for (size_t i = 0; i < program.operands.size(); ++i) {
    program.layouts.push_back(draw_layout(4, true, mesh, random));
  }
  program.run = [call](const Tensors& operands, const DeviceMesh* on) {
    return Results{
        {on == nullptr ? attend(operands, call)
                       : attend_cut(operands, call, *on)},
        {}};
  };
  return program;
}

} // namespace

Program draw_attention(const std::vector<int64_t>& mesh, Random& random) {
  return mesh.size() == 1 && random.chance(60)
      ? module_attention(mesh, random)
      : context_attention(mesh, random);
}

} // namespace dtensor::second_derivatives
