// SPDX-License-Identifier: BSD-3-Clause
// Parallel plan of Llama. Queries are sharded by groups that share a key head.
// If ranks would get unequal numbers of groups, queries are sharded by heads,
// because all ranks wait for the rank with the most work.
#pragma once

#include "model.h"

#include <dtensor/dtensor.h>

namespace llama {

inline dtensor::ParallelizePlan plan_of(const Config& config, int64_t ranks) {
  using namespace dtensor;
  const auto parts =
      config.key_heads % ranks == 0 ? config.key_heads : config.heads;
  const auto queries = config.width / parts;
  const ColwiseParallel keys(
      {.multiple_of = config.head_size(), .num_query_heads = parts});
  return {
      {"model.embed_tokens", RowwiseParallel({.input_layouts = Replicate()})},
      {"model.layers.*.self_attn.q_proj",
       ColwiseParallel({.multiple_of = queries})},
      {"model.layers.*.self_attn.[kv]_proj", keys},
      {"model.layers.*.self_attn.o_proj",
       RowwiseParallel({.multiple_of = queries})},
      {"model.layers.*.mlp.gate_proj", ColwiseParallel()},
      {"model.layers.*.mlp.up_proj", ColwiseParallel()},
      {"model.layers.*.mlp.down_proj", RowwiseParallel()},
      {"lm_head", ColwiseParallel({.use_local_output = false})}, // logits S(1)
  };
}

} // namespace llama
