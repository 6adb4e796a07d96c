// SPDX-License-Identifier: BSD-3-Clause
#include "plan.h"

namespace gpt {

using namespace dtensor;

void parallelize(GPT& model, const DeviceMesh& mesh, const Parallel& parallel) {
  // Between blocks, activations (B, T, C) are replicated, or sharded along T.
  const auto between = parallel.sequence ? Shard(1) : Replicate();
  const auto logits = parallel.loss ? Shard(-1) : Replicate();
  const ColwiseParallel columns({.use_local_output = false});
  const RowwiseParallel rows(
      {.output_layouts = between, .use_local_output = false});

  ParallelizePlan plan = {
      {"wte",
       RowwiseParallel(
           {.input_layouts = Replicate(),
            .output_layouts = between,
            .use_local_output = false})},
      {"wpe", // its output is (T, C)
       RowwiseParallel(
           {.input_layouts = Replicate(),
            .output_layouts = parallel.sequence ? Shard(0) : Replicate(),
            .use_local_output = false})},
      {"blocks.*.attn.w[qkv]", columns},
      {"blocks.*.attn.wo", rows},
      {"blocks.*.mlp.w1", columns},
      {"blocks.*.mlp.w2", rows},
      {"head",
       ColwiseParallel(
           {.output_layouts = logits, .use_local_output = !parallel.loss})},
  };
  if (parallel.sequence) {
    plan.push_back({"blocks.*.ln?", SequenceParallel()});
    plan.push_back({"lnf", SequenceParallel()});
  }
  parallelize_module(*model, mesh, plan);
  distribute_module(*model, mesh); // all other parameters are replicated
}

int64_t expected_collectives(int64_t layers, const Parallel& parallel) {
  // Two collectives for the embeddings in the forward pass. Two pairs per layer
  // of an all-gather (or nothing) and a reduction, forward and backward. One
  // for the input gradient of the head.
  const int64_t loss = parallel.loss ? 3 : 1; // otherwise logits are gathered
  if (!parallel.sequence) {
    return 2 + 4 * layers + 1 + loss;
  }
  // Embeddings: RS forward and AG backward. Head: AG of the input and RS of its
  // gradient. Norms: one flat AR of all gradients.
  return 4 + 8 * layers + 2 + 1 + loss;
}

} // namespace gpt
