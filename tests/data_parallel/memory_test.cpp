// SPDX-License-Identifier: BSD-3-Clause
// Memory of a rank with a sharded model: after a step, and at the peak.
#include <dtensor/data_parallel/fully_shard.h>
#include <examples/long_context/counted_memory.h>
#include <tests/parallel/modules.h>

#include <algorithm>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

constexpr int64_t kWidth = 256;
constexpr int64_t kLayers = 6;

// Model that consists of equal units only.
struct TowerImpl : torch::nn::Module {
  TowerImpl() : layers(register_module("layers", torch::nn::ModuleList())) {
    for (int64_t i = 0; i < kLayers; ++i) {
      layers->push_back(Mlp(kWidth, 4 * kWidth));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& layer : *layers) {
      x = x + layer->as<MlpImpl>()->forward(x);
    }
    return x;
  }
  torch::nn::ModuleList layers;
};
TORCH_MODULE(Tower);

int64_t bytes_of(const torch::nn::Module& module) {
  int64_t bytes = 0;
  for (const auto& parameter : module.parameters()) {
    bytes += parameter.numel() * 4;
  }
  return bytes;
}

struct Taken {
  int64_t after = 0; // after a backward pass
  int64_t most = 0;
  int64_t left = 0; // after the model is destroyed
};

// Trains and returns the memory of this rank.
Taken train_in_parts(const DeviceMesh& mesh) {
  const auto account = std::make_shared<MemoryAccount>();
  memory_account = account;
  Taken taken;
  {
    Tower tower;
    for (const auto& layer : *tower->layers) {
      fully_shard(*layer, {.mesh = mesh, .reshard_after_forward = true});
    }
    fully_shard(*tower, {.mesh = mesh});
    torch::optim::AdamW optimizer(tower->parameters());
    const auto x = torch::ones({1, kWidth});
    const auto step = [&] {
      tower(x).square().mean().backward();
      optimizer.step();
      optimizer.zero_grad();
    };
    step(); // creates the optimizer's states
    account->peak = account->now.load();
    tower(x).square().mean().backward();
    get_group(mesh).barrier(); // other ranks may still read this rank's memory
    taken.after = account->now;
    optimizer.step();
    taken.most = account->peak;
  }
  get_group(mesh).barrier();
  taken.left = account->now;
  memory_account = nullptr;
  return taken;
}

TEST(FullyShardMemory, IsThatOfAPart) {
  CountingAllocator::install();
  const auto model = bytes_of(*Tower());
  const auto unit = model / kLayers;
  for (const int64_t ranks : {2, 4}) {
    const auto on_rank = [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"dp"});
      const auto taken = train_in_parts(mesh);
      // Parameters, gradients and two AdamW states.
      const auto state = static_cast<double>(4 * model / ranks);
      const auto after = static_cast<double>(taken.after) / state;
      const auto units = (static_cast<double>(taken.most) - 1.05 * state) /
          static_cast<double>(unit);
      EXPECT_LE(after, 1.05);
      EXPECT_LE(units, 2.0);
      EXPECT_EQ(taken.left, 0);
      if (mesh.get_rank() == 0) {
        RecordProperty(c10::str("of_a_part_", ranks), c10::str(after));
        RecordProperty(c10::str("units_", ranks), c10::str(units));
      }
    };
    // Freed memory is returned, not kept for the next collective.
    run_ranks(ranks, on_rank, {.keep_freed_memory = false});
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
