// SPDX-License-Identifier: BSD-3-Clause
// Tests a model too large to build on one machine. It is created deferred,
// sharded eight ways and filled from a file; a rank takes only the memory of
// its shards. The file is sparse: all but a few numbers are holes.
#include <dtensor/deferred/deferred_init.h>
#include <dtensor/testing/fake_world.h>
#include <dtensor/weights/load_weights.h>
#include <tests/parallel/modules.h>

#include <nlohmann/json.hpp>

#include <malloc.h>

#include <filesystem>
#include <fstream>

#include "files.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace test_modules;
using namespace test_weights;

constexpr int64_t kWidth = 2560;
constexpr int64_t kHidden = 6912;
constexpr int64_t kVocabulary = 32000;
constexpr int64_t kLayers = 24;

torch::nn::Linear linear(int64_t from, int64_t to) {
  return torch::nn::Linear(torch::nn::LinearOptions(from, to).bias(false));
}

struct Layer : torch::nn::Module {
  Layer() {
    for (const auto* name : {"q", "k", "v", "o"}) {
      register_module(name, linear(kWidth, kWidth));
    }
    for (const auto* name : {"gate", "up"}) {
      register_module(name, linear(kWidth, kHidden));
    }
    register_module("down", linear(kHidden, kWidth));
  }
};

struct Large : torch::nn::Module {
  Large() {
    register_module("embed", torch::nn::Embedding(kVocabulary, kWidth));
    for (int64_t i = 0; i < kLayers; ++i) {
      register_module("layers" + std::to_string(i), std::make_shared<Layer>());
    }
    register_module("head", linear(kWidth, kVocabulary));
  }
};

// Writes the sparse file. The first three bfloat16 values of the weights are 1,
// 2 and 3.
void write_sparse(const std::string& path, const torch::nn::Module& model) {
  nlohmann::json header;
  uint64_t end = 0;
  std::vector<uint64_t> begins;
  for (const auto& item : model.named_parameters()) {
    const auto begin = end;
    begins.push_back(begin);
    end += static_cast<uint64_t>(item.value().numel()) * 2;
    header[item.key()] = {
        {"dtype", "BF16"},
        {"shape", item.value().sizes().vec()},
        {"data_offsets", {begin, end}}};
  }
  const auto text = header.dump();
  const uint64_t length = text.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file << text;
  const auto data = static_cast<uint64_t>(file.tellp());
  const uint16_t some[] = {0x3F80, 0x4000, 0x4040};
  for (const auto begin : begins) {
    file.seekp(static_cast<std::streamoff>(data + begin));
    file.write(reinterpret_cast<const char*>(some), sizeof(some));
  }
  file.close();
  std::filesystem::resize_file(path, data + end);
}

// Returns a field of /proc/self/status in MiB.
int64_t memory(const std::string& what) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(what + ":", 0) == 0) {
      return std::stoll(line.substr(what.size() + 1)) / 1024;
    }
  }
  return -1;
}

TEST(SlowLargeModel, TakesTheMemoryOfItsShards) {
  const Folder folder;
  const auto path = folder / "model.safetensors";
  testing::with_fake_world(0, 8, [&] {
    // Fixes glibc's threshold for mmap. Otherwise it grows, and glibc may keep
    // freed memory.
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
    malloc_trim(0);
    std::ofstream("/proc/self/clear_refs") << 5; // resets the peak
    const auto before = memory("VmRSS");
    std::shared_ptr<Large> model;
    {
      const DeferredInit scope;
      model = std::make_shared<Large>();
    }
    int64_t elements = 0;
    for (const auto& p : model->parameters()) {
      elements += p.numel();
    }
    ASSERT_GT(elements, 2'000'000'000);
    write_sparse(path, *model);
    const auto mesh = init_device_mesh(at::kCPU, {8}, {"tp"});
    const auto cut = RowwiseParallel({.input_layouts = Replicate()});
    parallelize_module(
        *model,
        mesh,
        {{"embed", cut},
         {"layers*.[qkv]", ColwiseParallel()},
         {"layers*.o", RowwiseParallel()},
         {"layers*.gate", ColwiseParallel()},
         {"layers*.up", ColwiseParallel()},
         {"layers*.down", RowwiseParallel()},
         {"head", ColwiseParallel()}});
    load_weights(*model, *open_weights(path));
    int64_t bytes = 0;
    for (const auto& item : model->named_parameters()) {
      const auto local = DTensor(item.value()).to_local();
      bytes += static_cast<int64_t>(local.nbytes());
      EXPECT_EQ(local.view({-1})[2].item<float>(), 3) << item.key();
    }
    EXPECT_EQ(bytes, elements * 4 / 8);
    const auto peak = memory("VmHWM") - before;
    EXPECT_GE(peak, (bytes >> 20) - 8); // the measurement works
    EXPECT_LE(peak, (bytes >> 20) + 64);
    std::cout << elements << " parameters; parts of " << (bytes >> 20)
              << " MiB, at most " << peak << " MiB taken\n";
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
