// SPDX-License-Identifier: BSD-3-Clause
// Shard arithmetic compared with torch.chunk and torch.cat on real tensors, and
// with numbers from Python.
#include <dtensor/layout/intervals_impl.h>
#include <dtensor/layout/shard_math.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>
#include <vector>

namespace dtensor {
namespace TEST_SOURCE {

// Returns the chunk of the 1-D tensor for rank `index` of `parts`, as
// placement.h defines it. at::chunk omits empty trailing chunks.
at::Tensor chunk_of(
    const at::Tensor& whole,
    int64_t parts,
    int64_t index,
    int64_t unit = 1) {
  const auto none = whole.slice(0, 0, 0);
  if (whole.numel() == 0) {
    return none;
  }
  const auto units = whole.split(unit);
  const auto chunks =
      at::chunk(at::arange(static_cast<int64_t>(units.size())), parts);
  if (index >= static_cast<int64_t>(chunks.size())) {
    return none;
  }
  const auto& mine = chunks[static_cast<size_t>(index)];
  std::vector<at::Tensor> kept;
  for (int64_t i = 0; i < mine.numel(); ++i) {
    kept.push_back(units[static_cast<size_t>(mine[i].item<int64_t>())]);
  }
  return at::cat(kept);
}

at::Tensor part_of(
    const at::Tensor& whole,
    const Placement& placement,
    int64_t parts,
    int64_t index) {
  if (!placement.is_sharded(0)) {
    return whole;
  }
  std::vector<at::Tensor> kept;
  const int64_t pieces =
      placement.is_shard() ? int64_t{1} : placement.split_factor();
  for (int64_t i = 0; i < pieces; ++i) {
    kept.push_back(
        chunk_of(chunk_of(whole, pieces, i), parts, index, placement.unit()));
  }
  return at::cat(kept);
}

std::vector<int64_t> elements(const at::Tensor& t) {
  const at::Tensor dense = t.contiguous();
  const auto* data = dense.data_ptr<int64_t>();
  return {data, data + dense.numel()};
}

std::vector<int64_t> elements(const Intervals& intervals) {
  std::vector<int64_t> list;
  for (const Interval& interval : intervals) {
    for (int64_t i = interval.begin; i < interval.end; ++i) {
      list.push_back(i);
    }
  }
  return list;
}

std::vector<Placement> cuts_up_to(int64_t split_factor) {
  std::vector<Placement> all = {Replicate(), Partial(), Shard(0), Shard(1)};
  for (int64_t sf = 1; sf <= split_factor; ++sf) {
    all.push_back(StridedShard(0, sf));
  }
  for (const int64_t unit : {2, 3, 20}) {
    all.push_back(Shard(0, unit));
    all.push_back(StridedShard(0, 2, unit));
  }
  return all;
}

TEST(ShardMath, ChunkIsTorchChunk) {
  for (int64_t n = 0; n <= 13; ++n) {
    for (int64_t parts = 1; parts <= 15; ++parts) {
      for (int64_t i = 0; i < parts; ++i) {
        const Interval part = chunk(n, parts, i);
        EXPECT_EQ(
            elements(Intervals{part}),
            elements(chunk_of(at::arange(n), parts, i)))
            << "chunk(" << n << ", " << parts << ", " << i << ")";
        EXPECT_LE(0, part.begin);
        EXPECT_LE(part.end, n);
      }
    }
  }
}

TEST(ShardMath, ChunkOfTheHeader) {
  EXPECT_EQ(chunk(5, 3, 0), (Interval{0, 2}));
  EXPECT_EQ(chunk(5, 3, 2), (Interval{4, 5}));
  EXPECT_EQ(chunk(2, 4, 3), (Interval{2, 2}));
  EXPECT_EQ(chunk(9, 2, 0, 2), (Interval{0, 6}));
  EXPECT_EQ(chunk(9, 2, 1, 2), (Interval{6, 9}));
}

TEST(ShardMath, NineHeadsOnTwoRanks) {
  EXPECT_EQ(
      local_sizes({512, 576}, {2}, {Shard(1, 64)}, {0}), (Sizes{512, 320}));
  EXPECT_EQ(
      local_sizes({512, 576}, {2}, {Shard(1, 64)}, {1}), (Sizes{512, 256}));
}

std::vector<Intervals> parts_of(int64_t size, int64_t parts, Placement cut) {
  std::vector<Intervals> all;
  for (int64_t rank = 0; rank < parts; ++rank) {
    all.push_back(dtensor::shard_intervals({{0, size}}, cut, parts, rank));
  }
  return all;
}

Placement largest(int64_t size, int64_t parts, const Placement& cut) {
  return with_largest_units({size}, {parts}, {cut})[0];
}

// Shards with units compare equal if they yield the same local shards, and have
// no unit if a plain shard yields them.
TEST(Units, AreEqualIfTheirShardsAre) {
  for (int64_t size = 0; size <= 24; ++size) {
    for (int64_t parts = 1; parts <= 5; ++parts) {
      for (int64_t a = 1; a <= size + 2; ++a) {
        const auto cut = largest(size, parts, Shard(0, a));
        const auto mine = parts_of(size, parts, Shard(0, a));
        ASSERT_EQ(parts_of(size, parts, cut), mine);
        ASSERT_EQ(cut == Shard(0), mine == parts_of(size, parts, Shard(0)))
            << size << " over " << parts << " in units of " << a;
        for (int64_t b = 1; b < a; ++b) {
          ASSERT_EQ(
              cut == largest(size, parts, Shard(0, b)),
              mine == parts_of(size, parts, Shard(0, b)))
              << size << " over " << parts << " in units of " << a << " and "
              << b;
        }
      }
    }
  }
}

TEST(Units, AreTheHeadsThatTheUserMeant) {
  EXPECT_EQ(largest(576, 2, Shard(0, 64)), Shard(0, 64));
  EXPECT_EQ(largest(576, 2, Shard(0, 192)), Shard(0, 192));
  EXPECT_EQ(largest(576, 3, Shard(0, 64)), Shard(0));
  EXPECT_EQ(largest(192, 4, Shard(0, 64)), Shard(0, 64));
  EXPECT_EQ(largest(576, 1, Shard(0, 64)), Shard(0));
  EXPECT_EQ(largest(10, 2, Shard(0, 8)), Shard(0, 8));
  EXPECT_EQ(largest(1728, 2, StridedShard(0, 3, 64)), StridedShard(0, 3, 64));
  EXPECT_EQ(largest(1536, 2, StridedShard(0, 3, 64)), StridedShard(0, 3));
}

// Canonical units keep every rank's local shards on two mesh dimensions.
TEST(Units, KeepShardsOfNestedShardings) {
  const auto kinds = cuts_up_to(3);
  for (const int64_t n : {0, 1, 5, 6, 8, 9, 12, 13, 18}) {
    for (const Sizes& mesh : {Sizes{2, 2}, Sizes{2, 3}, Sizes{3, 2}}) {
      for (const Placement& outer : kinds) {
        for (const Placement& inner : kinds) {
          const Placements given{outer, inner};
          const auto kept = with_largest_units({n, 4}, mesh, given);
          for (int64_t rank = 0; rank < mesh[0] * mesh[1]; ++rank) {
            const Sizes at{rank / mesh[1], rank % mesh[1]};
            ASSERT_EQ(
                local_intervals(n, 0, mesh, kept, at),
                local_intervals(n, 0, mesh, given, at))
                << n << " on (" << mesh[0] << ", " << mesh[1] << ")";
          }
          ASSERT_EQ(with_largest_units({n, 4}, mesh, kept), kept);
        }
      }
    }
  }
}

TEST(ShardMath, AnIntervalJoinsTheOneThatItBeginsAtTheEndOf) {
  Intervals list;
  detail::append_joined(list, {3, 3});
  EXPECT_TRUE(list.empty());
  detail::append_joined(list, {2, 4});
  detail::append_joined(list, {4, 5});
  EXPECT_EQ(list, (Intervals{{2, 5}}));
  detail::append_joined(list, {6, 8});
  detail::append_joined(list, {8, 8});
  detail::append_joined(list, {0, 2});
  EXPECT_EQ(list, (Intervals{{2, 5}, {6, 8}, {0, 2}}));
}

TEST(ShardMath, OnlyShardsCut) {
  const Intervals held{{0, 2}, {5, 8}};
  EXPECT_EQ(shard_intervals(held, Replicate(), 2, 1), held);
  EXPECT_EQ(shard_intervals(held, Partial(), 2, 1), held);
  EXPECT_EQ(shard_intervals(held, Shard(0), 2, 1), (Intervals{{6, 8}}));
}

TEST(ShardMath, CutJoinsAdjacentIntervals) {
  EXPECT_EQ(
      shard_intervals({{0, 2}, {2, 4}}, Shard(0), 1, 0), (Intervals{{0, 4}}));
  EXPECT_EQ(
      shard_intervals({{0, 8}}, StridedShard(0, 2), 1, 0), (Intervals{{0, 8}}));
  EXPECT_EQ(
      shard_intervals({{0, 8}}, StridedShard(0, 2), 2, 0),
      (Intervals{{0, 2}, {4, 6}}));
  EXPECT_EQ(
      shard_intervals({{0, 2}, {4, 6}}, Shard(0), 4, 2), (Intervals{{4, 5}}));
}

// All pairs of placements agree with nested chunks on every rank, for sizes up
// to 13.
TEST(ShardMath, NestedCutsAreChunksOfChunks) {
  const std::vector<Placement> placements = cuts_up_to(4);
  for (int64_t n = 0; n <= 13; ++n) {
    const at::Tensor whole = at::arange(n);
    for (int64_t a = 1; a <= 5; ++a) {
      for (const Placement& outer : placements) {
        for (int64_t i = 0; i < a; ++i) {
          const at::Tensor held = part_of(whole, outer, a, i);
          for (int64_t b = 1; b <= 5; ++b) {
            for (const Placement& inner : placements) {
              const Placements both = {outer, inner};
              const int64_t j = (i + n) % b;
              const at::Tensor expected = part_of(held, inner, b, j);
              ASSERT_EQ(
                  elements(local_intervals(n, 0, {a, b}, both, {i, j})),
                  elements(expected))
                  << n << " elements, mesh (" << a << ", " << b << "), rank ("
                  << i << ", " << j << ")";
              ASSERT_EQ(
                  local_sizes({n}, {a, b}, both, {i, j}),
                  Sizes{expected.numel()});
              ASSERT_EQ(
                  global_offset({n}, {a, b}, both, {i, j}),
                  Sizes{
                      expected.numel() == 0 ? n : expected[0].item<int64_t>()});
              ASSERT_EQ(size_before_mesh_dim(n, 0, {a, b}, both, {i, j}, 0), n);
              ASSERT_EQ(
                  size_before_mesh_dim(n, 0, {a, b}, both, {i, j}, 1),
                  held.numel());
              ASSERT_EQ(
                  size_before_mesh_dim(n, 0, {a, b}, both, {i, j}, 2),
                  expected.numel());
            }
          }
        }
      }
    }
  }
}

TEST(ShardMath, EveryElementIsHeldOnce) {
  for (int64_t n = 0; n <= 13; ++n) {
    for (const Placement& outer : {Shard(0), Shard(0, 4), StridedShard(0, 3)}) {
      for (const Placement& inner :
           {Shard(0), StridedShard(0, 2), StridedShard(0, 2, 2)}) {
        std::multiset<int64_t> held;
        for (int64_t rank = 0; rank < 6; ++rank) {
          for (const int64_t e : elements(local_intervals(
                   n, 0, {2, 3}, {outer, inner}, {rank / 3, rank % 3}))) {
            held.insert(e);
          }
        }
        std::multiset<int64_t> all;
        for (int64_t e = 0; e < n; ++e) {
          all.insert(e);
        }
        EXPECT_EQ(held, all);
      }
    }
  }
}

struct PythonCase {
  Sizes sizes;
  Sizes mesh;
  Placements placements;
  Sizes coordinate;
  Sizes local_sizes;
  Sizes offset;
};

// Expected values are from torch 2.13, torch.distributed.tensor._utils.
TEST(ShardMath, ShapesAndOffsetsMatchPython) {
  const std::vector<PythonCase> cases = {
      // clang-format off
      {{7, 5}, {2, 3}, {Shard(0), Shard(0)}, {0, 0}, {2, 5}, {0, 0}},
      {{7, 5}, {2, 3}, {Shard(0), Shard(0)}, {0, 1}, {2, 5}, {2, 0}},
      {{7, 5}, {2, 3}, {Shard(0), Shard(0)}, {0, 2}, {0, 5}, {7, 0}},
      {{7, 5}, {2, 3}, {Shard(0), Shard(0)}, {1, 0}, {1, 5}, {4, 0}},
      {{7, 5}, {2, 3}, {Shard(0), Shard(0)}, {1, 1}, {1, 5}, {5, 0}},
      {{7, 5}, {2, 3}, {Shard(0), Shard(0)}, {1, 2}, {1, 5}, {6, 0}},
      {{7, 5}, {2, 3}, {Shard(1), Shard(0)}, {0, 0}, {3, 3}, {0, 0}},
      {{7, 5}, {2, 3}, {Shard(1), Shard(0)}, {0, 1}, {3, 3}, {3, 0}},
      {{7, 5}, {2, 3}, {Shard(1), Shard(0)}, {0, 2}, {1, 3}, {6, 0}},
      {{7, 5}, {2, 3}, {Shard(1), Shard(0)}, {1, 0}, {3, 2}, {0, 3}},
      {{7, 5}, {2, 3}, {Shard(1), Shard(0)}, {1, 1}, {3, 2}, {3, 3}},
      {{7, 5}, {2, 3}, {Shard(1), Shard(0)}, {1, 2}, {1, 2}, {6, 3}},
      {{8, 6}, {2, 2}, {StridedShard(0, 2), Shard(0)}, {0, 0}, {2, 6}, {0, 0}},
      {{8, 6}, {2, 2}, {StridedShard(0, 2), Shard(0)}, {0, 1}, {2, 6}, {4, 0}},
      {{8, 6}, {2, 2}, {StridedShard(0, 2), Shard(0)}, {1, 0}, {2, 6}, {2, 0}},
      {{8, 6}, {2, 2}, {StridedShard(0, 2), Shard(0)}, {1, 1}, {2, 6}, {6, 0}},
      {{3, 4}, {4}, {Shard(0)}, {0}, {1, 4}, {0, 0}},
      {{3, 4}, {4}, {Shard(0)}, {1}, {1, 4}, {1, 0}},
      {{3, 4}, {4}, {Shard(0)}, {2}, {1, 4}, {2, 0}},
      {{3, 4}, {4}, {Shard(0)}, {3}, {0, 4}, {3, 0}},
      {{10}, {3}, {StridedShard(0, 4)}, {0}, {4}, {0}},
      {{10}, {3}, {StridedShard(0, 4)}, {1}, {3}, {1}},
      {{10}, {3}, {StridedShard(0, 4)}, {2}, {3}, {2}},
      {{13}, {2, 3}, {StridedShard(0, 3), Shard(0)}, {0, 0}, {3}, {0}},
      {{13}, {2, 3}, {StridedShard(0, 3), Shard(0)}, {0, 1}, {3}, {5}},
      {{13}, {2, 3}, {StridedShard(0, 3), Shard(0)}, {0, 2}, {2}, {10}},
      {{13}, {2, 3}, {StridedShard(0, 3), Shard(0)}, {1, 0}, {2}, {3}},
      {{13}, {2, 3}, {StridedShard(0, 3), Shard(0)}, {1, 1}, {2}, {8}},
      {{13}, {2, 3}, {StridedShard(0, 3), Shard(0)}, {1, 2}, {1}, {12}},
      // clang-format on
  };
  for (const PythonCase& c : cases) {
    SCOPED_TRACE(&c - cases.data());
    EXPECT_EQ(
        local_sizes(c.sizes, c.mesh, c.placements, c.coordinate),
        c.local_sizes);
    EXPECT_EQ(
        global_offset(c.sizes, c.mesh, c.placements, c.coordinate), c.offset);
  }
}

TEST(ShardMath, StridesMatchTensors) {
  for (const std::vector<int64_t>& sizes : std::vector<std::vector<int64_t>>{
           {}, {0}, {4}, {2, 3}, {2, 0, 3}, {1, 5, 1}, {2, 3, 4, 5, 6}}) {
    const at::Tensor t = at::empty(sizes);
    EXPECT_EQ(dtensor::contiguous_strides(sizes), Sizes(t.strides()));
    EXPECT_EQ(dense_strides(sizes, t.strides()), Sizes(t.strides()));
    EXPECT_EQ(numel(sizes), t.numel());
  }
}

TEST(ShardMath, DenseStridesKeepTheOrderInMemory) {
  EXPECT_EQ(dense_strides({4, 6}, {1, 8}), (Sizes{1, 4}));
  EXPECT_EQ(dense_strides({4, 6}, {8, 1}), (Sizes{6, 1}));
  EXPECT_EQ(dense_strides({4, 6}, {1, 1}), (Sizes{6, 1}));
  // (N, C, H, W) channels last
  const at::Tensor image =
      at::empty({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  EXPECT_EQ(
      dense_strides({1, 3, 4, 5}, image.strides()), (Sizes{60, 1, 15, 3}));
  EXPECT_EQ(dense_strides({0, 3}, {1, 7}), (Sizes{1, 1}));
}

// Expanded dimensions have stride 0 and no position in the memory order.
TEST(ShardMath, DenseStridesMatchResultsOfLibTorch) {
  constexpr int64_t kDims = 4;
  const std::vector<int64_t> sizes(kDims, 2);
  int64_t compared = 0;
  for (int64_t code = 0; code < 5 * 5 * 5 * 5; ++code) {
    std::vector<int64_t> strides;
    std::set<int64_t> distinct;
    for (int64_t d = 0, rest = code; d < kDims; ++d, rest /= 5) {
      strides.push_back(rest % 5 == 0 ? 0 : int64_t{1} << (rest % 5));
      distinct.insert(strides.back() == 0 ? -d : strides.back());
    }
    if (distinct.size() < kDims) {
      continue; // other overlapping tensors have no memory order
    }
    ++compared;
    const auto result = at::empty_strided(sizes, strides).neg();
    EXPECT_EQ(dense_strides(sizes, strides), Sizes(result.strides()))
        << at::IntArrayRef(strides);
  }
  EXPECT_EQ(compared, 209);
}

} // namespace TEST_SOURCE
} // namespace dtensor
