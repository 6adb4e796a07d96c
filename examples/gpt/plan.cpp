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
  // loss_parallel takes three all-reduces; otherwise logits are gathered.
  const int64_t loss = parallel.loss ? 3 : 1;
  // All-reduces: two for the embeddings, two per layer forward and backward
  // each, and one for the input gradient of the head.
  if (!parallel.sequence) {
    return 2 + 4 * layers + 1 + loss;
  }
  // Each of the two embeddings takes a reduce-scatter forward and an all-gather
  // backward. Each all-reduce of a layer, and that of the head, becomes an
  // all-gather and a reduce-scatter. The gradients of all norms take one
  // all-reduce.
  return 4 + 8 * layers + 2 + 1 + loss;
}

} // namespace gpt
