// SPDX-License-Identifier: BSD-3-Clause
// Parallel plan of the GPT: Megatron's tensor parallelism, optionally with
// sequence parallelism and a class-sharded loss.
#pragma once

#include "model.h"

#include <dtensor/dtensor.h>

namespace gpt {

struct Parallel {
  bool sequence = false; // activations between blocks are S(1)
  bool loss = false;     // logits stay S(-1), see loss_parallel
};

/// Shards the model's parameters over a one-dimensional mesh.
void parallelize(
    GPT& model,
    const dtensor::DeviceMesh& mesh,
    const Parallel& parallel);

/// Returns the number of collectives of one training step (forward, loss,
/// backward). docs/concepts/tensor_parallel.md has the counts for one layer.
int64_t expected_collectives(int64_t layers, const Parallel& parallel);

} // namespace gpt
