// SPDX-License-Identifier: BSD-3-Clause
// A rank of a parallel program touches only the bytes of its shards, and the
// rest of the pages in which these shards begin and end.
#include "exported.h"
#include "tests/weights/touched_pages.h"

#include <dtensor/dtensor.h>
#include <dtensor/testing/fake_world.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <iostream>
#include <set>

namespace dtensor {
namespace TEST_SOURCE {

using test_program::exported;
using test_weights::page_size;
using test_weights::TouchedPages;

size_t bytes_of_parts(Program& program) {
  size_t bytes = 0;
  for (const auto& parameter : program.module().parameters()) {
    bytes += DTensor(parameter).to_local().nbytes();
  }
  return bytes;
}

// Returns the allowed bytes. The first weight and bias, each row of the second
// weight, and the other bias may each begin and end within a page.
size_t most_for(size_t needed, size_t rows) {
  return needed + (3 + rows) * 2 * page_size();
}

TEST(ProgramTouchedBytes, EqualTheLocalShards) {
  const auto path = exported("wide");
  const auto all = std::filesystem::file_size(path);
  for (const int64_t ranks : {1, 2, 4, 8}) {
    for (const int64_t rank : std::set<int64_t>{0, ranks - 1}) {
      testing::with_fake_world(rank, ranks, [&] {
        const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
        auto program = load_program(path);
        const TouchedPages pages(path);
        tp_transform(program, mesh);
        const auto needed = bytes_of_parts(program);
        EXPECT_NEAR(
            static_cast<double>(needed),
            static_cast<double>(all) / static_cast<double>(ranks),
            static_cast<double>(all) / 500);
        EXPECT_GE(pages.bytes(), needed);
        EXPECT_LE(pages.bytes(), most_for(needed, 32));
        if (rank == 0) {
          std::cout << "1/" << ranks << " of " << all << " bytes: " << needed
                    << " in the parts, " << pages.bytes()
                    << " in pages that were touched\n";
        }
      });
    }
  }
}

// Finding a plan touches no pages. The graph has been read earlier, through
// another mapping.
TEST(ProgramTouchedBytes, AreNoneForFindingAPlan) {
  const auto path = exported("wide");
  const auto program = load_program(path);
  const TouchedPages pages(path);
  EXPECT_EQ(find_tp_plan(program).size(), 2U);
  EXPECT_EQ(program.input_names().size(), 1U);
  EXPECT_EQ(pages.bytes(), 0U);
}

} // namespace TEST_SOURCE
} // namespace dtensor
