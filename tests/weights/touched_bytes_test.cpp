// SPDX-License-Identifier: BSD-3-Clause
// A rank that loads its shards of a model touches only the bytes of these
// shards, and the rest of the pages in which the shards begin and end.
#include <dtensor/deferred/deferred_init.h>
#include <dtensor/testing/fake_world.h>
#include <dtensor/weights/load_weights.h>
#include <tests/parallel/modules.h>

#include <filesystem>
#include <set>

#include "files.h"
#include "touched_pages.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace test_modules;
using namespace test_weights;

// 8 MiB per weight: rows of 128 bytes, and rows of 256 KiB.
constexpr int64_t kWidth = 32;
constexpr int64_t kHidden = 65536;

// Storage of the first weight, which is sharded by rows, in the file.
struct Way {
  std::string name;
  WeightSource up;
  int64_t pieces = 1; // contiguous runs of a rank's shard in the file
};

const std::vector<Way> kWays = {
    {"as it is", {"w1.weight"}},
    {"transposed", {"w1.weight", true}, kWidth},
    // The rows of a head are in another order, but contiguous.
    {"interleaved", {"w1.weight", false, 16}}};

std::string write(const Folder& folder, const Way& way) {
  Mlp model(kWidth, kHidden);
  auto up = model->w1->weight.detach();
  if (way.up.transposed) {
    up = up.t();
  }
  return folder.write(
      way.name + ".safetensors",
      safetensors_of(
          {{"w1.weight", up},
           {"w1.bias", model->w1->bias},
           {"w2.weight", model->w2->weight},
           {"w2.bias", model->w2->bias}}));
}

// Checks the bytes that rank `rank` of `ranks` touches against the size of its
// shards.
void expect_its_part(
    const std::string& path,
    const Way& way,
    int64_t rank,
    int64_t ranks) {
  testing::with_fake_world(rank, ranks, [&] {
    Mlp model{nullptr};
    {
      const DeferredInit scope;
      model = Mlp(kWidth, kHidden);
    }
    const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
    parallelize_module(*model, mesh, mlp_plan());
    const auto file = open_weights(path);
    const TouchedPages pages(path);
    load_weights(*model, *file, {.names = [&](const std::string& name) {
      return name == "w1.weight" ? way.up : WeightSource{name};
    }});
    size_t needed = 0;
    for (const auto& parameter : model->parameters()) {
      const auto local =
          is_dtensor(parameter) ? DTensor(parameter).to_local() : parameter;
      needed += local.nbytes();
    }
    // The runs of the first weight, the rows of the second, and two biases may
    // each begin and end within a page.
    const auto pieces = static_cast<size_t>(way.pieces + kWidth + 2);
    EXPECT_GE(pages.bytes(), needed);
    EXPECT_LE(pages.bytes(), needed + pieces * 2 * page_size());
    const auto all = std::filesystem::file_size(path);
    const auto share = static_cast<double>(pages.bytes()) /
        (static_cast<double>(all) / static_cast<double>(ranks));
    EXPECT_LE(share, 1.25) << way.name << ", rank " << rank << " of " << ranks;
    if (rank == 0) {
      std::cout << way.name << ": 1/" << ranks << " of " << all
                << " bytes: " << needed << " in the parts, " << pages.bytes()
                << " in pages that were touched\n";
    }
  });
}

TEST(TouchedBytes, EqualTheLocalShards) {
  const Folder folder;
  for (const auto& way : kWays) {
    const auto path = write(folder, way);
    for (const int64_t ranks : {1, 2, 4, 8}) {
      for (const int64_t rank : std::set<int64_t>{0, ranks - 1}) {
        expect_its_part(path, way, rank, ranks);
      }
    }
  }
}

// Opening a file reads only its header, which all ranks need.
TEST(TouchedBytes, OpeningAFileReadsItsHeader) {
  const Folder folder;
  const auto path = write(folder, kWays[0]);
  const auto file = open_weights(path);
  const TouchedPages pages(path);
  EXPECT_EQ(file->weights().size(), 4);
  EXPECT_EQ(pages.bytes(), 0);
  at::Tensor bias = at::empty({kWidth});
  file->read("w2.bias", {Intervals{{0, kWidth}}}, bias);
  EXPECT_LE(pages.bytes(), 2 * page_size());
}

} // namespace TEST_SOURCE
} // namespace dtensor
