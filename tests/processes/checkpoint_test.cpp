// SPDX-License-Identifier: BSD-3-Clause
// Checkpoints of ranks that are processes.
#include <dtensor/checkpoint/async_saver.h>
#include <dtensor/checkpoint/checkpoint_folder.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/world.h>
#include <dtensor/tensor/dtensor.h>
#include <dtensor/weights/weight_file.h>
#include <tests/processes/on_ranks.h>
#include <torch/torch.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>

namespace dtensor {
namespace TEST_SOURCE {

GroupPtr world_group() {
  std::vector<int64_t> ranks(static_cast<size_t>(get_world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return new_group(ranks, "all");
}

// Returns a folder for all ranks, chosen by the first rank.
std::string common_folder(Group& group) {
  const auto mine = (std::filesystem::temp_directory_path() /
                     ("checkpoint_of_" + std::to_string(::getpid())))
                        .string();
  const auto folder = group.all_gather_strings(mine)[0];
  if (get_rank() == 0) {
    std::filesystem::remove_all(folder);
    std::filesystem::create_directory(folder);
  }
  group.barrier();
  return folder;
}

StateDict
state_on(const DeviceMesh& mesh, const Placement& layout, double add) {
  // Large enough that ranks share the reading.
  const auto whole = at::arange(600'000.).view({600, 1000}) + add;
  StateDict state;
  state.insert("w", distribute_tensor(whole, mesh, {layout}));
  state.insert("plain", whole.clone());
  state.insert("small", at::full({3}, add));
  return state;
}

TEST_ON_RANKS(ProcessCheckpoint, GoesFromAnyLayoutToAnyOther) {
  const auto group = world_group();
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

TEST_ON_RANKS(ProcessCheckpoint, IsUnshardedIfSavedUnsharded) {
  const auto group = world_group();
  const auto folder = common_folder(*group);
  const auto mesh = init_device_mesh(at::kCPU, {get_world_size()});
  auto saved = state_on(mesh, Shard(0), 1);
  for (const int64_t bytes : {int64_t{1} << 30, int64_t{1000}}) {
    const auto path = folder + "/of_" + std::to_string(bytes);
    save_checkpoint(
        path, {.tensors = &saved}, {.full = true, .max_file_bytes = bytes});
    const auto file = open_weights(
        path +
        (bytes > 1000 ? "/model.safetensors"
                      : "/model.safetensors.index.json"));
    for (const auto& item : saved) {
      EXPECT_TRUE(at::equal(file->read(item.key()), full_tensor(item.value())))
          << item.key();
    }
    auto loaded = state_on(mesh, Shard(1), 0);
    load_checkpoint(path, {.tensors = &loaded});
    EXPECT_TRUE(at::equal(full_tensor(loaded["w"]), full_tensor(saved["w"])));
  }
  group->barrier();
  if (get_rank() == 0) {
    std::filesystem::remove_all(folder);
  }
}

// If one rank passes other arguments or finds damage, all ranks get the error.
TEST_ON_RANKS(ProcessCheckpoint, ReportsErrorsOnAllRanks) {
  const auto group = world_group();
  const auto folder = common_folder(*group);
  const auto mesh = init_device_mesh(at::kCPU, {get_world_size()});
  const bool is_last = get_rank() == get_world_size() - 1;
  const auto error_of = [](const auto& fn) -> std::string {
    try {
      fn();
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "";
  };
  auto saved = state_on(mesh, Shard(0), 1);
  save_checkpoint(folder + "/one", {.tensors = &saved});
  if (get_world_size() > 1) {
    StateDict other;
    other.insert(is_last ? "mine" : "ours", at::ones({3}));
    EXPECT_NE(
        error_of([&] {
          save_checkpoint(folder + "/two", {.tensors = &other});
        }).find("arguments differ between ranks: rank 0 has \"ours\""),
        std::string::npos);
    StateDict partial;
    partial.insert(
        "w", at::ones({3}, is_last ? at::kComplexDouble : at::kFloat));
    EXPECT_NE(
        error_of([&] {
          save_checkpoint(folder + "/two", {.tensors = &partial});
        }).find("a dtype that safetensors does not support"),
        std::string::npos);
    EXPECT_FALSE(std::filesystem::exists(folder + "/two"));
  }
  group->barrier();
  if (get_rank() == 0) { // last byte of "w" in rank 0's file
    std::fstream file(
        folder + "/one/shard-00001-model-00001-of-00001.safetensors",
        std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('\x55');
  }
  group->barrier();
  for (const Placement& layout : {Shard(0), Shard(1), Replicate()}) {
    auto loaded = state_on(mesh, layout, 7);
    const auto error = error_of(
        [&] { load_checkpoint(folder + "/one", {.tensors = &loaded}); });
    EXPECT_NE(error.find("checksum mismatch in bytes "), std::string::npos)
        << error;
    const auto before = state_on(mesh, layout, 7);
    for (const auto& item : before) {
      EXPECT_TRUE(
          at::equal(full_tensor(loaded[item.key()]), full_tensor(item.value())))
          << item.key();
    }
  }
  group->barrier();
  if (get_rank() == 0) {
    std::filesystem::remove_all(folder);
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
