// SPDX-License-Identifier: BSD-3-Clause
// visualize_sharding and sharding_svg. Tables equal Python's tables for layouts
// that Python supports. For any layout, every cell names its ranks.
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/ranks.h>
#include <dtensor/debug/shard_grid_impl.h>
#include <dtensor/debug/visualize_sharding.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/dtensor.h>
#include <gtest/gtest.h>
#include <tests/error_of.h>
#include <torch/torch.h>

#include <regex>
#include <set>

namespace dtensor {
namespace TEST_SOURCE {

std::string shown(const char* layout) {
  return visualize_sharding(*parse_spec(layout).spec());
}

// The tables below the first line equal the output of Python 2.13.
TEST(VisualizeSharding, TablesOfTwoDimensionsEqualPython) {
  EXPECT_EQ(
      shown("f32[8, 6] on (2, 2): S(0) S(1)"),
      "f32[8, 6] on (2, 2): S(0) S(1)\n"
      "         Col 0-2    Col 3-5\n"
      "-------  ---------  ---------\n"
      "Row 0-3  cpu:0      cpu:1\n"
      "Row 4-7  cpu:2      cpu:3\n");
  EXPECT_EQ(
      shown("f32[8, 6] on (2, 2): R S(1)"),
      "f32[8, 6] on (2, 2): R S(1)\n"
      "         Col 0-2    Col 3-5\n"
      "-------  ---------  ---------\n"
      "Row 0-7  cpu:0,2    cpu:1,3\n");
  EXPECT_EQ(
      shown("f32[8, 6] on (2, 2): S(0) S(0)"),
      "f32[8, 6] on (2, 2): S(0) S(0)\n"
      "         Col 0-5\n"
      "-------  ---------\n"
      "Row 0-1  cpu:0\n"
      "Row 2-3  cpu:1\n"
      "Row 4-5  cpu:2\n"
      "Row 6-7  cpu:3\n");
}

TEST(VisualizeSharding, OneDimensionIsAColumnAndNoneACell) {
  EXPECT_EQ(
      shown("f32[8] on (tp=2): S(0)"),
      "f32[8] on (tp=2): S(0)\n"
      "Row 0-3  cpu:0\n"
      "Row 4-7  cpu:1\n");
  EXPECT_EQ(
      shown("f32[] on (tp=2): P(sum)"),
      "f32[] on (tp=2): P(sum)\n"
      "cpu:sum(0,1)\n");
}

// Python: "Row 2-1  cpu:2,3".
TEST(VisualizeSharding, NamesRanksWithoutElements) {
  EXPECT_EQ(
      shown("f32[2] on (tp=4): S(0)"),
      "f32[2] on (tp=4): S(0)\n"
      "Row 0-0  cpu:0\n"
      "Row 1-1  cpu:1\n"
      "nothing on cpu:2,3\n");
  EXPECT_EQ(
      shown("f32[0, 4] on (tp=4): S(1)"),
      "f32[0, 4] on (tp=4): S(1)\n"
      "nothing on cpu:0-3\n");
}

TEST(VisualizeSharding, ShowsUnevenShards) {
  EXPECT_EQ(
      shown("f32[5, 6] on (dp=2, tp=2): S(0) S(0)"),
      "f32[5, 6] on (dp=2, tp=2): S(0) S(0)\n"
      "         Col 0-5\n"
      "-------  ---------\n"
      "Row 0-1  cpu:0\n"
      "Row 2-2  cpu:1\n"
      "Row 3-3  cpu:2\n"
      "Row 4-4  cpu:3\n");
}

TEST(VisualizeSharding, DistinguishesCopiesFromTerms) {
  EXPECT_EQ(
      shown("f32[4, 4] on (dp=2, tp=2): R P(sum)"),
      "f32[4, 4] on (dp=2, tp=2): R P(sum)\n"
      "         Col 0-3\n"
      "-------  ---------------------\n"
      "Row 0-3  cpu:sum(0,1),sum(2,3)\n");
  EXPECT_EQ(
      shown("f32[4] on (dp=2, tp=2): P(max) R"),
      "f32[4] on (dp=2, tp=2): P(max) R\n"
      "Row 0-3  cpu:max(0,2),max(1,3)\n");
  EXPECT_EQ(
      shown("f32[4] on (dp=2, tp=2): P(sum) P(sum)"),
      "f32[4] on (dp=2, tp=2): P(sum) P(sum)\n"
      "Row 0-3  cpu:sum(0-3)\n");
  EXPECT_EQ(
      shown("f32[4] on (dp=2, tp=2): P(avg) P(sum)"),
      "f32[4] on (dp=2, tp=2): P(avg) P(sum)\n"
      "Row 0-3  cpu:avg(sum(0,1),sum(2,3))\n");
}

TEST(VisualizeSharding, AStridedShardIsSeveralRegions) {
  EXPECT_EQ(
      shown("f32[8] on (tp=2): SS(0, sf=2)"),
      "f32[8] on (tp=2): SS(0, sf=2)\n"
      "Row 0-1  cpu:0\n"
      "Row 2-3  cpu:1\n"
      "Row 4-5  cpu:0\n"
      "Row 6-7  cpu:1\n");
}

TEST(VisualizeSharding, ThreeDimensionsAreSheets) {
  // Dimension 1 is not sharded, so the output is a single table of the other
  // two dimensions.
  EXPECT_EQ(
      shown("f32[4, 9, 6] on (dp=2, tp=2): S(0) S(2)"),
      "f32[4, 9, 6] on (dp=2, tp=2): S(0) S(2)\n"
      "            dim 2: 0-2    dim 2: 3-5\n"
      "----------  ------------  ------------\n"
      "dim 0: 0-1  cpu:0         cpu:1\n"
      "dim 0: 2-3  cpu:2         cpu:3\n");
  EXPECT_EQ(
      shown("f32[2, 2, 2] on (2, 2, 2): S(0) S(1) S(2)"),
      "f32[2, 2, 2] on (2, 2, 2): S(0) S(1) S(2)\n"
      "\n"
      "dim 0: 0-0\n"
      "            dim 2: 0-0    dim 2: 1-1\n"
      "----------  ------------  ------------\n"
      "dim 1: 0-0  cpu:0         cpu:1\n"
      "dim 1: 1-1  cpu:2         cpu:3\n"
      "\n"
      "dim 0: 1-1\n"
      "            dim 2: 0-0    dim 2: 1-1\n"
      "----------  ------------  ------------\n"
      "dim 1: 0-0  cpu:4         cpu:5\n"
      "dim 1: 1-1  cpu:6         cpu:7\n");
}

TEST(VisualizeSharding, RanksAreGlobal) {
  const DeviceMesh mesh(at::kCUDA, {2}, {7, 3}, {"tp"}, 7);
  EXPECT_EQ(
      visualize_sharding(
          *Spec::make(mesh, {Shard(0)}, {4}, at::kHalf), {.header = "w1"}),
      "w1: f16[4] on (tp=2): S(0)\n"
      "Row 0-1  cuda:7\n"
      "Row 2-3  cuda:3\n");
}

TEST(VisualizeSharding, ColorsSayNothingNew) {
  const auto spec = parse_spec("f32[8, 6] on (2, 2): S(0) S(1)").spec();
  const auto text = visualize_sharding(*spec, {.use_color = true});
  const std::regex escape("\x1b\\[[0-9;]*m");
  std::set<std::string> colors;
  for (std::sregex_iterator it(text.begin(), text.end(), escape), end;
       it != end;
       ++it) {
    colors.insert(it->str());
  }
  EXPECT_EQ(colors.size(), 4U + 1U); // one more code resets the color
  const auto plain = std::regex_replace(
      std::regex_replace(text, escape, ""), std::regex(" +\n"), "\n");
  EXPECT_EQ(plain, visualize_sharding(*spec));
}

TEST(VisualizeSharding, ADTensorIsPrintedOnce) {
  std::vector<std::string> texts(4);
  ::testing::internal::CaptureStdout();
  run_ranks(4, [&](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    const auto x =
        distribute_tensor(at::ones({4, 4}), mesh, {Replicate(), Shard(0)});
    texts[static_cast<size_t>(rank)] = visualize_sharding(x);
    visualize_sharding(x, {.header = "not printed", .print = false});
  });
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), texts[0]);
  EXPECT_EQ(texts[0], shown("f32[4, 4] on (dp=2, tp=2): R S(0)"));
  EXPECT_EQ(texts, std::vector<std::string>(4, texts[0]));
}

TEST(VisualizeSharding, APlainTensorIsAnError) {
  EXPECT_EQ(
      test_text::error_of<c10::TypeError>(
          [] { visualize_sharding(at::ones({2})); }),
      test_text::error_of<c10::TypeError>([] { DTensor(at::ones({2})); }));
}

// Every element is in a cell of the ranks that hold it, by the arithmetic of
// DTensors.
TEST(ShardGrid, EveryRankHoldsItsCells) {
  const std::vector<Placement> layouts = {
      Replicate(),
      Shard(0),
      Shard(1),
      StridedShard(0, 2),
      StridedShard(1, 3),
      Partial()};
  const DeviceMesh mesh(at::kCPU, {2, 3}, {0, 1, 2, 3, 4, 5});
  for (const auto& a : layouts) {
    for (const auto& b : layouts) {
      const auto spec = Spec::make(mesh, {a, b}, {7, 4}, at::kFloat);
      const detail::ShardGrid grid(*spec);
      // Number of elements in cells with this rank as the first holder.
      std::vector<int64_t> elements(6, 0);
      int64_t all = 0;
      for (size_t row = 0; row < grid.pieces(0).size(); ++row) {
        for (size_t col = 0; col < grid.pieces(1).size(); ++col) {
          const auto size =
              grid.pieces(0)[row].size() * grid.pieces(1)[col].size();
          elements[static_cast<size_t>(grid.first_holder({row, col}))] += size;
          all += size;
        }
      }
      EXPECT_EQ(all, 7 * 4) << *spec;
      for (int64_t i = 0; i < 6; ++i) {
        const auto coordinate = mesh.coordinate_of(i);
        const bool is_first = (a.is_sharded() || coordinate[0] == 0) &&
            (b.is_sharded() || coordinate[1] == 0);
        const auto held = numel(local_sizes(
            spec->sizes(), mesh.shape(), spec->placements(), coordinate));
        EXPECT_EQ(elements[static_cast<size_t>(i)], is_first ? held : 0)
            << *spec << " of " << i;
      }
    }
  }
}

size_t count(const std::string& text, const std::string& what) {
  size_t n = 0;
  for (size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + what.size())) {
    ++n;
  }
  return n;
}

TEST(ShardingSvg, HasARectangleAndALabelForEachCell) {
  const auto svg = sharding_svg(
      *parse_spec("f32[8, 6] on (dp=2, tp=2): S(0) S(1)").spec(), "a < b");
  EXPECT_EQ(svg.find("<svg xmlns=\"http://www.w3.org/2000/svg\""), 0U);
  EXPECT_EQ(count(svg, "<rect x="), 4U);
  EXPECT_EQ(count(svg, "url(#partial)"), 0U);
  for (const auto* text :
       {">cpu:0<",
        ">cpu:3<",
        ">0-3<",
        ">4-7<",
        ">0-2<",
        "a &lt; b: f32[8, 6] on (dp=2, tp=2): S(0) S(1)"}) {
    EXPECT_EQ(count(svg, text), 1U) << text;
  }
}

TEST(ShardingSvg, HatchesPartialAndNamesRanksWithoutElements) {
  const auto svg = sharding_svg(
      *parse_spec("f32[1, 4, 4] on (dp=2, tp=2): S(0) P(sum)").spec());
  EXPECT_EQ(count(svg, "url(#partial)"), 1U);
  EXPECT_EQ(count(svg, ">cpu:sum(0,1)<"), 1U);
  EXPECT_EQ(count(svg, ">nothing on cpu:2,3<"), 1U);
}

TEST(ShardingSvg, DrawsToScale) {
  const std::regex rect(
      "<rect x=\"\\d+\" y=\"\\d+\" width=\"(\\d+)\" height=\"(\\d+)\"");
  const auto svg =
      sharding_svg(*parse_spec("f32[12, 12] on (tp=2): SS(0, sf=1)").spec());
  std::smatch found;
  ASSERT_TRUE(std::regex_search(svg, found, rect));
  EXPECT_EQ(std::stoi(found[1]), 2 * std::stoi(found[2]));
}

TEST(ShardingSvg, OfADTensorIsThatOfItsLayout) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto x = distribute_tensor(at::ones({4, 4}), mesh, {Shard(0)});
    EXPECT_EQ(sharding_svg(x, "x"), sharding_svg(*DTensor(x).spec(), "x"));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
