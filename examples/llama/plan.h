// SPDX-License-Identifier: BSD-3-Clause
// How Llama is spread over ranks: queries by the groups that share a key head,
// so that any number of ranks has whole groups.
#pragma once

#include "model.h"

#include <dtensor/dtensor.h>

namespace llama {

inline dtensor::ParallelizePlan plan_of(const Config& config) {
  using namespace dtensor;
  const auto head = config.head_size();
  const auto group = config.heads / config.key_heads * head;
  return {
      {"model.embed_tokens", RowwiseParallel({.input_layouts = Replicate()})},
      {"model.layers.*.self_attn.q_proj", ColwiseParallel({.unit = group})},
      {"model.layers.*.self_attn.[kv]_proj", ColwiseParallel({.unit = head})},
      {"model.layers.*.self_attn.o_proj", RowwiseParallel({.unit = group})},
      {"model.layers.*.mlp.gate_proj", ColwiseParallel()},
      {"model.layers.*.mlp.up_proj", ColwiseParallel()},
      {"model.layers.*.mlp.down_proj", RowwiseParallel()},
      {"lm_head", ColwiseParallel({.use_local_output = false})}, // logits S(1)
  };
}

} // namespace llama
