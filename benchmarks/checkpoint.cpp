// SPDX-License-Identifier: BSD-3-Clause
// Loads a checkpoint from the page cache into the shards of four ranks, and
// compares with reading its files one after the other (like `cat`). `times` is
// the ratio of the load time to the read time.
#include "harness.h"

#include <dtensor/checkpoint/checkpoint.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/ranks.h>
#include <dtensor/tensor/factories.h>

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <vector>

namespace {

using namespace dtensor;
namespace fs = std::filesystem;

constexpr int64_t kRanks = 4;
constexpr int64_t kTensors = 8;

StateDict parts_on(const DeviceMesh& mesh, int64_t width, const Placement& p) {
  StateDict state;
  for (int64_t i = 0; i < kTensors; ++i) {
    state.insert("w" + std::to_string(i), zeros({width, width}, mesh, {p}));
  }
  return state;
}

void save(const std::string& path, int64_t width) {
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    auto state = parts_on(mesh, width, Shard(0));
    for (const auto& item : state) {
      DTensor(item.value()).to_local().fill_(1);
    }
    save_checkpoint(path, {.tensors = &state});
  });
}

// Returns the seconds until all ranks have their shards.
double load(const std::string& path, int64_t width, const Placement& layout) {
  double seconds = 0;
  run_ranks(kRanks, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {kRanks});
    auto state = parts_on(mesh, width, layout);
    get_group(mesh).barrier();
    const auto begin = bench::now();
    load_checkpoint(path, {.tensors = &state});
    get_group(mesh).barrier();
    if (get_rank() == 0) {
      seconds = bench::now() - begin;
    }
    TORCH_CHECK(
        DTensor(state["w7"]).to_local().min().item<float>() == 1,
        "the loaded values differ from the saved ones");
  });
  return seconds;
}

// Returns the seconds until all bytes have been read into a buffer.
double read(const std::string& path) {
  std::vector<char> buffer(128 << 10);
  const auto begin = bench::now();
  for (const auto& entry : fs::directory_iterator(path)) {
    const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    TORCH_CHECK(file >= 0, "cannot open ", entry.path().string());
    while (::read(file, buffer.data(), buffer.size()) > 0) {
    }
    ::close(file);
  }
  return bench::now() - begin;
}

void measure(
    const std::string& name,
    const std::string& path,
    int64_t width,
    const Placement& layout,
    bool smoke) {
  bench::Turns turns;
  for (int turn = 0; turn < (smoke ? 1 : 7); ++turn) {
    const auto seconds = load(path, width, layout);
    turns.add(seconds * 1e6, read(path) * 1e6);
  }
  turns.report(name);
}

} // namespace

int main(int argc, char** argv) {
  const auto options = bench::parse(
      argc, argv, "Loading a checkpoint, compared with reading its files.");
  const int64_t width = options.smoke ? 64 : 4096; // 512 MiB in total
  const auto folder = fs::temp_directory_path() /
      ("dtensor_bench_checkpoint_" + std::to_string(::getpid()));
  fs::create_directory(folder);
  const auto path = (folder / "one").string();
  save(path, width);
  const std::vector<std::pair<std::string, Placement>> layouts = {
      {"checkpoint/load/rows/4", Shard(0)},
      {"checkpoint/load/columns/4", Shard(1)},
      {"checkpoint/load/replicas/4", Replicate()}};
  for (const auto& [name, layout] : layouts) {
    if (options.wants(name)) {
      measure(name, path, width, layout, options.smoke);
    }
  }
  fs::remove_all(folder);
}
