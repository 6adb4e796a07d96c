// SPDX-License-Identifier: BSD-3-Clause
// What is read of a checkpoint: each byte once over all ranks, and what memory
// it takes meanwhile.
#include <dtensor/checkpoint/checkpoint.h>
#include <dtensor/checkpoint/read_part_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/factories.h>
#include <dtensor/testing/fake_world.h>
#include <tests/parallel/modules.h>
#include <tests/weights/files.h>
#include <tests/weights/touched_pages.h>

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test_modules;
using test_weights::Folder;
using test_weights::TouchedPages;
namespace fs = std::filesystem;

constexpr int64_t kRanks = 4;

at::Tensor empty_on(
    const DeviceMesh& mesh,
    at::IntArrayRef sizes,
    const Placement& layout) {
  return zeros({sizes.begin(), sizes.end()}, mesh, {layout});
}

// Pages that all ranks touch, as a share of the bytes of the tensor.
double share_touched(const std::string& path, const Placement& layout) {
  size_t touched = 0;
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    testing::with_fake_world(rank, kRanks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {kRanks});
      const auto target = empty_on(mesh, {4096, 4096}, layout);
      const auto file = open_weights(path);
      detail::PartReader reader(*file, nullptr, {});
      const TouchedPages pages(path);
      reader.check("w", target);
      reader.read("w", target);
      touched += pages.bytes();
      EXPECT_EQ(reader.damage(), "");
    });
  }
  return static_cast<double>(touched) / (4096. * 4096 * 4);
}

TEST(CheckpointBytes, AreReadByThoseWhoHaveThem) {
  const Folder folder;
  StateDict state;
  state.insert("w", at::rand({4096, 4096}));
  save_checkpoint(folder / "one", {.tensors = &state});
  const auto path = folder / "one/shard-00001-model-00001-of-00001.safetensors";
  const auto rows = share_touched(path, Shard(0));
  EXPECT_GE(rows, 1.);
  EXPECT_LE(rows, 1.05);
  // Of a block each rank has some columns, and one of them looks at all of it.
  const auto columns = share_touched(path, Shard(1));
  EXPECT_GE(columns, 1.);
  EXPECT_LE(columns, 1.8);
  std::cout << "of the bytes, all ranks touch " << rows
            << " where they have rows, " << columns
            << " where they have columns\n";
}

// "VmHWM:   123 kB"
int64_t number_in(const std::string& file, const std::string& key) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(key + ":")) {
      return std::stoll(line.substr(key.size() + 1));
    }
  }
  return 0;
}

int64_t peak_bytes() {
  return number_in("/proc/self/status", "VmHWM") << 10;
}
int64_t bytes_from_disk() {
  return number_in("/proc/self/io", "read_bytes");
}

void forget_in_cache(const std::string& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    ::fsync(file);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}

template <class Fn>
double seconds(const Fn& fn) {
  const auto begin = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
      .count();
}

constexpr int64_t kTensors = 8;
constexpr int64_t kWidth = 8192; // 256 MiB each

struct Cost {
  int64_t beside = 0; // the most memory that was held beside the parts
  double seconds = 0;
  double of_a_processor = 0;
};

// Of one rank's parts.
Cost load_part(const std::string& path, int64_t rank, const Placement& layout) {
  Cost cost;
  testing::with_fake_world(rank, kRanks, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {kRanks});
    std::ofstream("/proc/self/clear_refs") << "5"; // the peak is now
    const auto before = peak_bytes();
    int64_t own = 0;
    StateDict state;
    for (int64_t i = 0; i < kTensors; ++i) {
      const auto target = empty_on(mesh, {kWidth, kWidth}, layout);
      own += static_cast<int64_t>(DTensor(target).to_local().nbytes());
      state.insert("w" + std::to_string(i), target);
    }
    const auto clock = std::clock();
    cost.seconds = seconds([&] { load_checkpoint(path, {.tensors = &state}); });
    cost.of_a_processor =
        static_cast<double>(std::clock() - clock) / CLOCKS_PER_SEC;
    cost.beside = peak_bytes() - before - own;
    const auto last = DTensor(state["w7"]).to_local();
    EXPECT_EQ(last.min().item<float>(), 7);
    EXPECT_EQ(last.max().item<float>(), 7);
  });
  return cost;
}

// Whole files of 128 MiB, by each of two ranks one.
TEST(SlowLargeCheckpoint, IsPutTogetherInLittleMemory) {
  const Folder folder;
  constexpr int64_t kFile = int64_t{128} << 20;
  int64_t beside = 0;
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    StateDict state;
    for (int64_t i = 0; i < 4; ++i) {
      const auto w = empty_on(mesh, {4096, 4096}, Shard(0));
      DTensor(w).to_local().fill_(static_cast<double>(i));
      state.insert("w" + std::to_string(i), w);
    }
    int64_t before = 0;
    if (get_rank() == 0) {
      std::ofstream("/proc/self/clear_refs") << "5";
      before = peak_bytes();
    }
    save_checkpoint(
        folder / "one",
        {.tensors = &state},
        {.full = true, .max_file_bytes = kFile});
    if (get_rank() == 0) {
      beside = peak_bytes() - before;
    }
  });
  std::cout << (beside >> 20) << " MiB beside the parts of two ranks\n";
  EXPECT_LE(beside, int64_t{128} << 20);
  const auto file =
      open_weights(folder / "one/model-00002-of-00002.safetensors");
  ASSERT_EQ(file->weights().size(), 2);
  EXPECT_EQ(file->read("w2").min().item<float>(), 2);
  EXPECT_EQ(file->read("w3").max().item<float>(), 3);
}

TEST(SlowLargeCheckpoint, IsReadOnceInLittleMemory) {
  const Folder folder;
  const auto path = folder / "one";
  std::cout << "saved in " << seconds([&] {
    run_ranks(2, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {2});
      StateDict state;
      for (int64_t i = 0; i < kTensors; ++i) {
        const auto w = empty_on(mesh, {kWidth, kWidth}, Shard(0));
        DTensor(w).to_local().fill_(static_cast<double>(i));
        state.insert("w" + std::to_string(i), w);
      }
      save_checkpoint(path, {.tensors = &state});
    });
  }) << " s\n";
  const double size = static_cast<double>(kTensors * kWidth * kWidth * 4);
  for (const Placement& layout : {Shard(0), Shard(1)}) {
    forget_in_cache(path);
    const auto before = bytes_from_disk();
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      const auto beside = load_part(path, rank, layout).beside;
      EXPECT_LE(beside, int64_t{64} << 20) << rank;
      std::cout << "rank " << rank << ": " << (beside >> 20)
                << " MiB beside its parts\n";
    }
    const auto share = static_cast<double>(bytes_from_disk() - before) / size;
    EXPECT_LE(share, 1.05);
    Cost cached;
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      const auto cost = load_part(path, rank, layout);
      cached.seconds += cost.seconds;
      cached.of_a_processor += cost.of_a_processor;
    }
    const auto cat = seconds([&] {
      const auto command = "cat " + path + "/* >/dev/null";
      EXPECT_EQ(std::system(command.c_str()), 0);
    });
    std::cout << to_string(layout) << ": " << share
              << " of the bytes came from disk; " << cached.seconds << " s ("
              << cached.of_a_processor
              << " of a processor) for all ranks from the cache, cat " << cat
              << " s\n";
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
