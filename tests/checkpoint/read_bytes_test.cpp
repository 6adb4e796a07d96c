// SPDX-License-Identifier: BSD-3-Clause
// Cost of loading a checkpoint: each byte is read once over all ranks, and
// little additional memory is used.
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

#include <filesystem>
#include <fstream>
#include <iostream>
#include <optional>

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

// Returns the bytes of pages that all ranks touch, relative to the tensor's
// bytes.
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

// Returns the same share for ranks that read at the same time, each with its
// own mapping of the file.
double share_touched_at_once(
    const std::string& path,
    const Placement& layout,
    bool share_reading) {
  size_t touched = 0;
  run_ranks(kRanks, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {kRanks});
    Group& all = get_group(mesh);
    const auto target = empty_on(mesh, {4096, 4096}, layout);
    const auto file = open_weights(path);
    detail::PartReader reader(
        *file, get_all_groups(mesh)[0], {.share_reading = share_reading});
    all.barrier(); // all ranks have mapped the file
    std::optional<TouchedPages> pages;
    if (all.rank() == 0) {
      pages.emplace(path);
    }
    all.barrier();
    reader.check("w", target);
    reader.read("w", target);
    all.barrier(); // all ranks have read it
    if (pages) {
      touched = pages->bytes();
      pages.reset();
    }
    all.barrier(); // keep the mappings while pages are counted
    EXPECT_EQ(reader.damage(), "");
    const auto local = DTensor(target).to_local();
    EXPECT_EQ(local.min().item<float>(), 3);
    EXPECT_EQ(local.max().item<float>(), 3);
  });
  return static_cast<double>(touched) / (4096. * 4096 * 4);
}

std::string saved_matrix(const Folder& folder) {
  StateDict state;
  state.insert("w", at::full({4096, 4096}, 3, at::kFloat));
  save_checkpoint(folder / "one", {.tensors = &state});
  return folder / "one/shard-00001-model-00001-of-00001.safetensors";
}

TEST(CheckpointBytes, AreReadByRanksWithTheShard) {
  const Folder folder;
  const auto path = saved_matrix(folder);
  const auto rows = share_touched(path, Shard(0));
  EXPECT_GE(rows, 1.);
  EXPECT_LE(rows, 1.05);
  // Every rank has some columns of each block, and one rank also verifies the
  // full block.
  const auto columns = share_touched(path, Shard(1));
  EXPECT_GE(columns, 1.);
  EXPECT_LE(columns, 1.8);
  std::cout << "of the bytes, all ranks touch " << rows
            << " where they have rows, " << columns
            << " where they have columns\n";
}

// Replicas read one slice each, or the full tensor if share_reading is false.
TEST(CheckpointBytes, OfReplicasAreReadInShares) {
  const Folder folder;
  const auto path = saved_matrix(folder);
  const auto rows = share_touched_at_once(path, Shard(0), true);
  EXPECT_GE(rows, 1.);
  EXPECT_LE(rows, 1.05);
  const auto shared = share_touched_at_once(path, Replicate(), true);
  EXPECT_GE(shared, 1.);
  EXPECT_LE(shared, 1.05);
  const auto alone = share_touched_at_once(path, Replicate(), false);
  EXPECT_GE(alone, 4.);
  EXPECT_LE(alone, 4.05);
}

// Returns the number in a line such as "VmHWM:   123 kB".
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

// Returns true if this system counts the bytes read from disk. If files are in
// memory or /proc/self/io has no counts, a count of 0 is meaningless.
bool counts_bytes_from_disk(const Folder& folder) {
  constexpr int64_t kBytes = int64_t{8} << 20;
  const auto path = folder / "probe";
  std::filesystem::create_directory(path);
  std::ofstream(path + "/file") << std::string(kBytes, 'x');
  forget_in_cache(path);
  const auto before = bytes_from_disk();
  std::ifstream file(path + "/file");
  std::string bytes(kBytes, '\0');
  file.read(bytes.data(), kBytes);
  return bytes_from_disk() - before >= kBytes;
}

constexpr const char* kNotCounted =
    "the system does not count the bytes that come from the disk";

constexpr int64_t kTensors = 8;
constexpr int64_t kWidth = 8192; // 256 MiB each

// Returns tensors of zeros, and the bytes of this rank's local shards.
std::pair<StateDict, int64_t>
parts_on(const DeviceMesh& mesh, const Placement& layout, int64_t tensors) {
  StateDict state;
  int64_t own = 0;
  for (int64_t i = 0; i < tensors; ++i) {
    const auto target = empty_on(mesh, {kWidth, kWidth}, layout);
    own += static_cast<int64_t>(DTensor(target).to_local().nbytes());
    state.insert("w" + std::to_string(i), target);
  }
  return {std::move(state), own};
}

void expect_loaded(const StateDict& state) {
  for (size_t i = 0; i < state.size(); ++i) {
    const auto part = DTensor(state["w" + std::to_string(i)]).to_local();
    EXPECT_EQ(part.min().item<float>(), static_cast<float>(i));
    EXPECT_EQ(part.max().item<float>(), static_cast<float>(i));
  }
}

// Returns the peak memory in addition to the local shards of one rank that
// loads them.
int64_t
beside_part(const std::string& path, int64_t rank, const Placement& layout) {
  int64_t beside = 0;
  testing::with_fake_world(rank, kRanks, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {kRanks});
    std::ofstream("/proc/self/clear_refs") << "5"; // resets the peak
    const auto before = peak_bytes();
    auto [state, own] = parts_on(mesh, layout, kTensors);
    load_checkpoint(path, {.tensors = &state});
    beside = peak_bytes() - before - own;
    expect_loaded(state);
  });
  return beside;
}

// Returns the peak memory in addition to the local shards of all ranks, which
// load at once.
int64_t beside_all_parts(
    const std::string& path,
    const Placement& layout,
    int64_t tensors) {
  int64_t beside = 0;
  run_ranks(kRanks, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {kRanks});
    auto parts = parts_on(mesh, layout, tensors);
    auto& state = parts.first;
    get_group(mesh).barrier();
    int64_t before = 0;
    if (get_rank() == 0) {
      std::ofstream("/proc/self/clear_refs") << "5";
      before = peak_bytes(); // includes the local shards
    }
    get_group(mesh).barrier();
    load_checkpoint(path, {.tensors = &state});
    get_group(mesh).barrier();
    if (get_rank() == 0) {
      beside = peak_bytes() - before;
    }
    expect_loaded(state);
  });
  return beside;
}

void save_large(const std::string& path, int64_t tensors) {
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    auto parts = parts_on(mesh, Shard(0), tensors);
    auto& state = parts.first;
    for (int64_t i = 0; i < tensors; ++i) {
      DTensor(state["w" + std::to_string(i)])
          .to_local()
          .fill_(static_cast<double>(i));
    }
    save_checkpoint(path, {.tensors = &state});
  });
}

double share_from_disk(int64_t before, int64_t tensors) {
  return static_cast<double>(bytes_from_disk() - before) /
      static_cast<double>(tensors * kWidth * kWidth * 4);
}

// Two ranks each assemble one full file of 128 MiB.
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
    get_group(mesh).barrier(); // the other rank has its shards too
    int64_t before = 0;
    if (get_rank() == 0) {
      std::ofstream("/proc/self/clear_refs") << "5";
      before = peak_bytes();
    }
    save_checkpoint(
        folder / "one",
        {.tensors = &state},
        {.full = true, .max_file_bytes = kFile});
    get_group(mesh).barrier(); // the other rank has written its file too
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

// benchmarks/checkpoint.cpp compares the duration with `cat`.
TEST(SlowLargeCheckpoint, IsReadOnceInLittleMemory) {
  const Folder folder;
  const bool counts = counts_bytes_from_disk(folder);
  const auto path = folder / "one";
  save_large(path, kTensors);
  for (const Placement& layout : {Shard(0), Shard(1)}) {
    forget_in_cache(path);
    const auto before = bytes_from_disk();
    for (int64_t rank = 0; rank < kRanks; ++rank) {
      const auto beside = beside_part(path, rank, layout);
      EXPECT_LE(beside, int64_t{64} << 20) << rank;
      std::cout << "rank " << rank << ": " << (beside >> 20)
                << " MiB beside its parts\n";
    }
    const auto share = share_from_disk(before, kTensors);
    std::cout << to_string(layout) << ": " << share
              << " of the bytes came from disk\n";
    EXPECT_LE(share, 1.05);
    EXPECT_GE(share, counts ? 0.99 : 0.);
  }
  if (!counts) {
    GTEST_SKIP() << kNotCounted;
  }
}

TEST(SlowLargeCheckpoint, IsReadOnceByRanksThatLoadAtOnce) {
  constexpr int64_t kFew = 2; // replicas take four times this
  const Folder folder;
  const bool counts = counts_bytes_from_disk(folder);
  const auto path = folder / "one";
  save_large(path, kFew);
  for (const Placement& layout : {Shard(0), Shard(1), Replicate()}) {
    forget_in_cache(path);
    const auto before = bytes_from_disk();
    const auto beside = beside_all_parts(path, layout, kFew);
    EXPECT_LE(beside, kRanks * (int64_t{64} << 20)) << to_string(layout);
    const auto share = share_from_disk(before, kFew);
    std::cout << to_string(layout) << ": " << share
              << " of the bytes came from disk, " << (beside >> 20)
              << " MiB beside the parts of " << kRanks << " ranks\n";
    EXPECT_LE(share, 1.05) << to_string(layout);
    EXPECT_GE(share, counts ? 0.99 : 0.) << to_string(layout);
  }
  if (!counts) {
    GTEST_SKIP() << kNotCounted;
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
