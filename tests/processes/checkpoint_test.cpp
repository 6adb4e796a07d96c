// SPDX-License-Identifier: BSD-3-Clause
// Checkpoints of ranks that are processes.
#include <dtensor/checkpoint/async_saver.h>
#include <dtensor/checkpoint/checkpoint_folder.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/world.h>
#include <dtensor/tensor/dtensor.h>
#include <tests/processes/on_ranks.h>
#include <torch/torch.h>

#include <unistd.h>

#include <filesystem>
#include <numeric>

namespace dtensor {
namespace TEST_SOURCE {

GroupPtr everybody() {
  std::vector<int64_t> ranks(static_cast<size_t>(get_world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return new_group(ranks, "all");
}

// One for all ranks, by the first rank.
std::string common_folder(Group& group) {
  const auto mine = (std::filesystem::temp_directory_path() /
                     ("checkpoint_of_" + std::to_string(::getpid())))
                        .string();
  const auto folder = group.exchange(mine)[0];
  if (get_rank() == 0) {
    std::filesystem::remove_all(folder);
    std::filesystem::create_directory(folder);
  }
  group.barrier();
  return folder;
}

StateDict
state_on(const DeviceMesh& mesh, const Placement& layout, double add) {
  // Large enough that ranks share it.
  const auto whole = at::arange(600'000.).view({600, 1000}) + add;
  StateDict state;
  state.insert("w", distribute_tensor(whole, mesh, {layout}));
  state.insert("plain", whole.clone());
  state.insert("small", at::full({3}, add));
  return state;
}

TEST_ON_RANKS(ProcessCheckpoint, GoesFromAnyLayoutToAnyOther) {
  const auto group = everybody();
  const auto folder = common_folder(*group);
  const auto mesh = init_device_mesh(at::kCPU, {get_world_size()});
  AsyncSaver saver;
  int64_t step = 0;
  for (const Placement& from : {Shard(0), Shard(1), Replicate()}) {
    const auto path = folder + "/step_" + std::to_string(++step);
    auto saved = state_on(mesh, from, 1);
    saver.save(path, {.tensors = &saved});
    saver.wait();
    for (const Placement& to : {Shard(1), Shard(0), Replicate()}) {
      const auto truth = state_on(mesh, to, 1);
      auto loaded = state_on(mesh, to, 0);
      load_checkpoint(path, {.tensors = &loaded});
      for (const auto& item : truth) {
        EXPECT_TRUE(at::equal(
            full_tensor(loaded[item.key()]), full_tensor(item.value())))
            << item.key();
      }
    }
    keep_last(folder, 2);
    group->barrier();
    EXPECT_EQ(latest_checkpoint(folder), path);
  }
  group->barrier();
  if (get_rank() == 0) {
    std::filesystem::remove_all(folder);
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
