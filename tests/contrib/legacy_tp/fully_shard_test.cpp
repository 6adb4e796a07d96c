// SPDX-License-Identifier: BSD-3-Clause
// Styles of PyTorch 2.0 below fully_shard, as by enable_2d_with_fsdp().
#include <dtensor/contrib/legacy_tp/torch_2_0.h>
#include <dtensor/data_parallel/fully_shard.h>
#include <tests/parallel/modules.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

TEST(Torch20FullyShardTest, TrainsAsThePlainModule) {
  static_assert(torch_2_0::enable_2d_with_fsdp());
  const auto input = uniform({4, 6}, 3);
  run_ranks(4, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    auto plain = filled(Mlp(6, 7));
    auto mlp = filled(Mlp(6, 7));
    torch_2_0::parallelize_module(
        *mlp, mesh, torch_2_0::PairwiseParallel(), /*tp_mesh_dim=*/1);
    fully_shard(*mlp, {.mesh = mesh["dp"]});
    torch::optim::AdamW alone(plain->parameters());
    torch::optim::AdamW optimizer(mlp->parameters());
    const auto mine = input.narrow(0, 2 * mesh.get_local_rank("dp"), 2);
    for (int step = 0; step < 3; ++step) {
      alone.zero_grad();
      optimizer.zero_grad();
      plain(input).square().mean().backward();
      mlp(mine).square().mean().backward();
      expect_same_gradients(*mlp, *plain, c10::str("step ", step), 1e-9);
      alone.step();
      optimizer.step();
      expect_same_parameters(*mlp, *plain);
    }
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
