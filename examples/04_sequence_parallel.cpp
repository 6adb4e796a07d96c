// SPDX-License-Identifier: BSD-3-Clause
// Sequence parallelism: between the matrix products, activations (B, T, C) are
// sharded along T, so that norms and dropout work on shards. Each all-reduce of
// tensor parallelism becomes an all-gather and a reduce-scatter of the same
// total size.
#include "check.h"

#include <dtensor/dtensor.h>
#include <torch/torch.h>

#include <iostream>

using namespace dtensor;

struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : norm(register_module(
            "norm",
            torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})))),
        gate(register_module("gate", torch::nn::Linear(16, 32))),
        up(register_module("up", torch::nn::Linear(16, 32))),
        down(register_module("down", torch::nn::Linear(32, 16))),
        dropout(register_module("dropout", torch::nn::Dropout(0.1))) {}
  torch::Tensor forward(const torch::Tensor& x) { // (B, T, C)
    const auto y = norm(x);
    return x + dropout(down(torch::silu(gate(y)) * up(y)));
  }
  torch::nn::LayerNorm norm;
  torch::nn::Linear gate, up, down;
  torch::nn::Dropout dropout;
};
TORCH_MODULE(Block);

void parallelize(Block& block, const DeviceMesh& mesh) {
  const ColwiseParallel columns({.use_local_output = false});
  parallelize_module(
      *block,
      mesh,
      {
          {"norm", SequenceParallel()},
          {"gate", columns}, // all-gathers y; up uses the gathered value
          {"up", columns},
          {"down",
           RowwiseParallel(
               {.output_layouts = Shard(1), .use_local_output = false})},
      });
}

int main() {
  torch::Tensor first;
  for (const int64_t ranks : {1, 2, 4}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(torch::kCPU, {ranks}, {"tp"});
      dtensor::manual_seed(0);
      Block block;
      block->to(torch::kDouble);
      parallelize(block, mesh);
      const auto x = torch::randn({2, 8, 16}, torch::kDouble);
      const auto sharded = distribute_tensor(x, mesh, {Shard(1)});

      const auto y = block(sharded);
      CHECK_THAT(DTensor(y).placements()[0] == Shard(1));
      const auto full = full_tensor(y);
      if (get_rank() == 0) {
        // The same result on any number of ranks, including dropout.
        first = first.defined() ? first : full.detach();
        CHECK_THAT(torch::allclose(full, first, 1e-12, 1e-12));
        std::cout << ranks << " ranks: " << *DTensor(y).spec() << "\n";
      }
    });
  }
}
