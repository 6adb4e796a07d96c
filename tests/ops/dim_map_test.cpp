// SPDX-License-Identifier: BSD-3-Clause
// Compares the view mathematics with lists of elements. The elements of a rank
// are listed as positions in row-major order.
#include <dtensor/layout/text.h>
#include <dtensor/ops/dim_map.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace dtensor {
namespace TEST_SOURCE {

using Elements = std::vector<int64_t>;

// Returns the positions that `coordinate` holds, in the order of the local
// tensor.
Elements elements_at(
    SizesRef sizes,
    SizesRef mesh_shape,
    PlacementsRef placements,
    SizesRef coordinate) {
  Elements held{0};
  for (size_t d = 0; d < sizes.size(); ++d) {
    const auto intervals = local_intervals(
        sizes[d], static_cast<int64_t>(d), mesh_shape, placements, coordinate);
    Elements next;
    int64_t count = 0;
    for (const auto& interval : intervals) {
      count += interval.end - interval.begin;
    }
    next.reserve(held.size() * static_cast<size_t>(count));
    for (const auto before : held) {
      for (const auto& interval : intervals) {
        for (auto i = interval.begin; i < interval.end; ++i) {
          next.push_back(before * sizes[d] + i);
        }
      }
    }
    held = std::move(next);
  }
  return held;
}

std::vector<Sizes> coordinates_of(SizesRef mesh_shape) {
  std::vector<Sizes> all{{}};
  for (const auto n : mesh_shape) {
    std::vector<Sizes> longer;
    for (const auto& c : all) {
      for (int64_t i = 0; i < n; ++i) {
        longer.push_back(c);
        longer.back().push_back(i);
      }
    }
    all = std::move(longer);
  }
  return all;
}

bool same_elements(
    SizesRef from,
    PlacementsRef in,
    SizesRef to,
    PlacementsRef out,
    SizesRef mesh_shape) {
  for (const auto& c : coordinates_of(mesh_shape)) {
    if (elements_at(from, mesh_shape, in, c) !=
        elements_at(to, mesh_shape, out, c)) {
      return false;
    }
  }
  return true;
}

// Returns every list of 0 to 3 sizes with `numel` elements, including sizes 1.
std::vector<Sizes> shapes_of(int64_t numel) {
  std::vector<Sizes> all;
  if (numel == 1) {
    all.push_back({});
  }
  all.push_back({numel});
  for (int64_t a = 1; a <= numel; ++a) {
    if (numel % a != 0) {
      continue;
    }
    all.push_back({a, numel / a});
    for (int64_t b = 1; b <= numel / a; ++b) {
      if (numel / a % b == 0) {
        all.push_back({a, b, numel / a / b});
      }
    }
  }
  return all;
}

Placements kinds_for(const Sizes& sizes) {
  Placements kinds{Replicate(), Partial(ReduceOp::kSum)};
  for (size_t d = 0; d < sizes.size(); ++d) {
    kinds.push_back(Shard(static_cast<int64_t>(d)));
    for (const int64_t factor : {2, 3}) {
      kinds.push_back(StridedShard(static_cast<int64_t>(d), factor));
    }
    kinds.push_back(Shard(static_cast<int64_t>(d), 2));
    kinds.push_back(StridedShard(static_cast<int64_t>(d), 2, 2));
  }
  return kinds;
}

std::vector<Placements> layouts_for(const Sizes& sizes, size_t mesh_ndim) {
  std::vector<Placements> all{{}};
  for (size_t m = 0; m < mesh_ndim; ++m) {
    std::vector<Placements> longer;
    for (const auto& layout : all) {
      for (const auto& kind : kinds_for(sizes)) {
        longer.push_back(layout);
        longer.back().push_back(kind);
      }
    }
    all = std::move(longer);
  }
  return all;
}

std::string text(SizesRef sizes) {
  std::string joined = "[";
  for (const auto n : sizes) {
    joined += (joined.size() == 1 ? "" : ", ") + std::to_string(n);
  }
  return joined + "]";
}

struct View {
  Sizes from;
  Sizes to;
  Sizes mesh;
  Placements layout;

  std::string describe() const {
    return text(from) + " -> " + text(to) + " on " + text(mesh) + ": " +
        to_string(layout);
  }
};

template <class Check>
void for_each_view(
    const std::vector<int64_t>& numels,
    const std::vector<Sizes>& meshes,
    const Check& check) {
  for (const auto numel : numels) {
    for (const auto& from : shapes_of(numel)) {
      for (const auto& to : shapes_of(numel)) {
        for (const auto& mesh : meshes) {
          for (const auto& layout : layouts_for(from, mesh.size())) {
            check(View{from, to, mesh, layout});
          }
        }
      }
    }
  }
}

// Checks that a kept layout holds the same elements on every rank. A layout
// with lost mesh dimensions must do so after these become Replicate.
void expect_exact(const View& v) {
  const auto got = view_layout(v.from, v.to, v.mesh, v.layout);
  ASSERT_EQ(got.inputs.size(), v.layout.size()) << v.describe();
  ASSERT_EQ(got.outputs.size(), v.layout.size()) << v.describe();
  EXPECT_TRUE(same_elements(v.from, got.inputs, v.to, got.outputs, v.mesh))
      << v.describe() << " gave " << to_string(got.inputs) << " -> "
      << to_string(got.outputs);
  for (size_t m = 0; m < v.layout.size(); ++m) {
    if (got.inputs[m] != v.layout[m]) {
      EXPECT_TRUE(got.inputs[m].is_replicate()) << v.describe();
      EXPECT_LE(0, got.lost_mesh_dim) << v.describe();
    }
    if (v.layout[m].is_partial()) {
      EXPECT_EQ(got.outputs[m], v.layout[m]) << v.describe();
    }
  }
  if (got.lost_mesh_dim < 0) {
    EXPECT_EQ(got.inputs, v.layout) << v.describe();
  }
}

TEST(ViewLayout, HoldsTheSameElementsOnOneMeshDimension) {
  for_each_view({1, 2, 3, 4, 5, 6, 8, 12}, {{1}, {2}, {3}, {4}}, expect_exact);
}

TEST(ViewLayout, HoldsTheSameElementsOnTwoMeshDimensions) {
  for_each_view({4, 6}, {{2, 2}, {2, 3}, {3, 2}, {1, 2}}, expect_exact);
}

TEST(ViewLayout, HoldsTheSameElementsOfLargerShapes) {
  for_each_view({24, 36}, {{2}, {3}, {5}}, expect_exact);
}

// Returns true if a sharded dimension of size 1 leaves all elements on the
// first rank. A StridedShard with as many blocks as elements does the same, but
// no program uses it.
bool is_on_one_rank(const View& v) {
  return v.from[static_cast<size_t>(v.layout[0].dim())] == 1;
}

// Checks that a lost mesh dimension could not have been kept by any placement.
void expect_no_layout(View v) {
  v.layout = with_largest_units(v.from, v.mesh, v.layout);
  if (!v.layout[0].is_shard() || is_on_one_rank(v) ||
      view_layout(v.from, v.to, v.mesh, v.layout).lost_mesh_dim < 0) {
    return;
  }
  for (size_t d = 0; d < v.to.size(); ++d) {
    for (int64_t factor = 1; factor <= numel(v.to); ++factor) {
      for (int64_t unit = 1; unit <= v.to[d]; ++unit) {
        const Placements out{
            StridedShard(static_cast<int64_t>(d), factor, unit)};
        EXPECT_FALSE(same_elements(v.from, v.layout, v.to, out, v.mesh))
            << v.describe() << " could be " << to_string(out);
      }
    }
  }
}

TEST(ViewLayout, GivesUpOnlyWhatNoLayoutHolds) {
  for_each_view({2, 3, 4, 6, 8, 12}, {{2}, {3}, {4}}, expect_no_layout);
}

void expect(
    const Sizes& from,
    const Sizes& to,
    const Sizes& mesh,
    const char* in,
    const char* out) {
  const auto got = view_layout(from, to, mesh, parse_placements(in));
  EXPECT_EQ(got.lost_mesh_dim, -1) << in;
  EXPECT_EQ(to_string(with_largest_units(to, mesh, got.outputs)), out);
}

TEST(ViewLayout, NamesTheLayoutOneExpects) {
  expect({8, 8}, {64}, {8}, "S(0)", "S(0)");
  expect({8, 8}, {64}, {8}, "S(1)", "SS(0, sf=8)");
  expect({64}, {8, 8}, {8}, "S(0)", "S(0)");
  expect({64}, {8, 8}, {8}, "SS(0, sf=8)", "S(1)");
  expect({2, 3, 8}, {2, 3, 2, 4}, {2}, "S(2)", "S(2)");
  expect({2, 3, 2, 4}, {2, 3, 8}, {2}, "S(2)", "S(2)");
  expect({2, 3, 8}, {6, 8}, {2}, "S(2)", "S(1)");
  expect({4, 3, 8}, {12, 8}, {2}, "S(0)", "S(0)");
  expect({2, 4, 8}, {8, 8}, {2}, "S(1)", "SS(0, sf=2)");
  expect({4, 4}, {16}, {2, 2}, "S(0) S(1)", "S(0) SS(0, sf=2)");
  expect({16}, {4, 4}, {2, 2}, "S(0) SS(0, sf=2)", "S(0) S(1)");
  expect({4, 4}, {1, 4, 4, 1}, {2, 2}, "S(1) S(1)", "S(2) S(2)");
  expect({1, 4}, {4}, {1}, "S(1)", "S(0)");
  // Uneven shards are exact.
  expect({5, 3}, {5, 3, 1}, {2}, "S(0)", "S(0)");
  expect({4, 5}, {20}, {2}, "S(1)", "SS(0, sf=4)");
  expect({3, 4}, {12}, {2}, "P(sum)", "P(sum)");
  expect({5, 2}, {10}, {4}, "R", "R");
}

TEST(ViewLayout, HeadsThatDoNotDivide) {
  expect({4, 576}, {4, 9, 64}, {2}, "S(1, u=64)", "S(1)");
  expect({4, 9, 64}, {4, 576}, {2}, "S(1)", "S(1, u=64)");
  // Three query heads share a key head.
  expect({4, 576}, {4, 9, 64}, {2}, "S(1, u=192)", "S(1, u=3)");
  expect({4, 9, 64}, {4, 576}, {2}, "S(1, u=3)", "S(1, u=192)");
  expect({4, 192}, {4, 3, 64}, {4}, "S(1, u=64)", "S(1)");
  // Batch and heads are one dimension, as in torch::nn::MultiheadAttention.
  expect({5, 2, 576}, {5, 18, 64}, {2}, "S(2, u=64)", "SS(1, sf=2)");
  expect({5, 18, 64}, {5, 2, 576}, {2}, "SS(1, sf=2)", "S(2, u=64)");
  // Query, key and value are one dimension.
  expect({4, 1728}, {4, 3, 9, 64}, {2}, "SS(1, sf=3, u=64)", "S(2)");
  expect({4, 3, 9, 64}, {4, 1728}, {2}, "S(2)", "SS(1, sf=3, u=64)");
  expect({5, 2}, {10}, {2}, "S(0)", "S(0, u=2)");
}

TEST(ViewLayout, NamesTheMeshDimensionThatIsLost) {
  const auto lost = view_layout({12}, {3, 4}, {2, 2}, {Replicate(), Shard(0)});
  EXPECT_EQ(lost.lost_mesh_dim, 1);
  EXPECT_EQ(to_string(lost.inputs), "R R");
  EXPECT_EQ(to_string(lost.outputs), "R R");
  const auto half =
      view_layout({12, 4}, {3, 4, 4}, {2, 2}, {Shard(0), Shard(1)});
  EXPECT_EQ(half.lost_mesh_dim, 0);
  EXPECT_EQ(to_string(half.inputs), "R S(1)");
  EXPECT_EQ(to_string(half.outputs), "R S(2)");
  // The shards of 10 elements have 5 each, which is not a multiple of rows of
  // 2.
  EXPECT_EQ(view_layout({10}, {5, 2}, {2}, {Shard(0)}).lost_mesh_dim, 0);
  EXPECT_EQ(view_layout({1}, {}, {2}, {Shard(0)}).lost_mesh_dim, 0);
}

TEST(ViewLayout, KeepsAnyLayoutOfATensorWithoutElements) {
  const auto got = view_layout({0, 4}, {2, 0}, {2}, {Shard(1)});
  EXPECT_EQ(got.lost_mesh_dim, -1);
  EXPECT_TRUE(same_elements({0, 4}, got.inputs, {2, 0}, got.outputs, {2}));
}

TEST(ViewLayout, TakesManyRanks) {
  const auto got = view_layout(
      {4096, 2048}, {4096, 16, 128}, {64, 16}, {Shard(0), Shard(1)});
  EXPECT_EQ(to_string(got.outputs), "S(0) S(1)");
}

} // namespace TEST_SOURCE
} // namespace dtensor
