// SPDX-License-Identifier: BSD-3-Clause
// Operators whose number of result elements depends on values: unique finds the
// elements of each shard first, and repeat_interleave leaves shards of other
// dimensions where they are.
#include <dtensor/debug/comm_debug_mode.h>
#include <tests/ops/against_plain.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace against_plain;

// Returns few distinct numbers.
at::Tensor repeating(at::IntArrayRef sizes, at::ScalarType dtype) {
  return numbers(sizes, 7).remainder(5).floor().to(dtype);
}

TensorList unique_of(const at::Tensor& x, bool inverse, bool counts) {
  const auto [values, places, numbers] =
      at::_unique2(x, /*sorted=*/true, inverse, counts);
  return {values, places, numbers};
}

OpCase unique_case(at::Tensor x, bool inverse, bool counts) {
  OpCase c{"unique", {std::move(x)}, [=](const TensorList& in) {
             return unique_of(in[0], inverse, counts);
           }};
  c.differentiable = false;
  return c;
}

TEST(Unique, IsThatOfThePlainTensor) {
  const auto x = repeating({5, 4}, at::kDouble);
  std::vector<OpCase> cases{
      unique_case(repeating({7}, at::kLong), true, true),
      unique_case(numbers({9}, 1), true, true),
      unique_case(repeating({4, 5}, at::kFloat).t(), true, true),
      unique_case(repeating({2, 3, 5}, at::kDouble), true, true),
      unique_case(repeating({5}, at::kLong).gt(2), true, true),
      unique_case(at::zeros({0, 3}), true, true),
      unique_case(at::ones({}), true, true)};
  for (const bool inverse : {false, true}) {
    for (const bool counts : {false, true}) {
      cases.push_back(unique_case(x, inverse, counts));
    }
  }
  OpCase old{"_unique", {x}, [](const TensorList& in) {
               const auto [values, places] = at::_unique(in[0], true, true);
               return TensorList{values, places};
             }};
  old.differentiable = false;
  cases.push_back(old);
  check_cases(cases);
}

using UniqueFn = TensorList (*)(const at::Tensor&, bool inverse, bool counts);

// unique_consecutive, and unique of slices along a dimension.
const std::vector<std::pair<const char*, UniqueFn>>& unique_functions() {
  static const std::vector<std::pair<const char*, UniqueFn>> all{
      {"unsorted",
       [](const at::Tensor& x, bool inverse, bool counts) {
         const auto [a, b, c] = at::_unique2(x, false, inverse, counts);
         return TensorList{a, b, c};
       }},
      {"unique_consecutive",
       [](const at::Tensor& x, bool inverse, bool counts) {
         const auto [a, b, c] = at::unique_consecutive(x, inverse, counts);
         return TensorList{a, b, c};
       }},
      {"unique_consecutive of columns",
       [](const at::Tensor& x, bool inverse, bool counts) {
         const auto [a, b, c] = at::unique_consecutive(x, inverse, counts, -1);
         return TensorList{a, b, c};
       }},
      {"unique_consecutive of rows",
       [](const at::Tensor& x, bool inverse, bool counts) {
         const auto [a, b, c] = at::unique_consecutive(x, inverse, counts, 0);
         return TensorList{a, b, c};
       }},
      {"unique_dim_consecutive",
       [](const at::Tensor& x, bool inverse, bool counts) {
         const auto [a, b, c] =
             at::unique_dim_consecutive(x, 0, inverse, counts);
         return TensorList{a, b, c};
       }},
      {"unique_dim of rows",
       [](const at::Tensor& x, bool inverse, bool counts) {
         const auto [a, b, c] = at::unique_dim(x, 0, true, inverse, counts);
         return TensorList{a, b, c};
       }},
      {"unique_dim of columns",
       [](const at::Tensor& x, bool inverse, bool counts) {
         const auto [a, b, c] = at::unique_dim(x, -1, false, inverse, counts);
         return TensorList{a, b, c};
       }}};
  return all;
}

TEST(Unique, OfNeighboursAndSlicesIsThatOfThePlainTensor) {
  const auto runs = repeating({4}, at::kDouble).repeat_interleave(5);
  const std::vector<at::Tensor> operands{
      at::cat({runs, runs.slice(0, 3, 5)}),
      at::ones({7, 3}, at::kLong),
      repeating({3, 2}, at::kLong).index_select(0, at::tensor({1, 1, 2, 0, 0})),
      repeating({2, 3}, at::kLong).index_select(1, at::tensor({1, 1, 2, 0, 0})),
      repeating({5, 4}, at::kDouble).gt(2),
      at::zeros({0}, at::kLong)};
  std::vector<OpCase> cases;
  for (const auto& entry : unique_functions()) {
    const auto& name = entry.first;
    const auto& fn = entry.second;
    for (const auto& x : operands) {
      OpCase c{name, {x}, [fn](const TensorList& in) {
                 return fn(in[0], true, true);
               }};
      c.differentiable = false;
      cases.push_back(c);
    }
  }
  check_cases(cases);
}

// Results that a call does not request are empty if LibTorch's are: not those
// of slices.
TEST(Unique, ReturnsUnwantedResultsAsThePlainOperatorDoes) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const std::vector<at::Tensor> operands{
        repeating({5, 4}, at::kLong), repeating({9}, at::kLong)};
    for (const auto& plain : operands) {
      const auto x = place(plain, mesh, {Shard(0)});
      for (const auto& [name, fn] : unique_functions()) {
        for (const bool inverse : {false, true}) {
          const auto found = fn(x, inverse, false);
          const auto truth = fn(plain, inverse, false);
          for (size_t i = 0; i < truth.size(); ++i) {
            EXPECT_TRUE(same(full_tensor(found[i]), truth[i]))
                << name << " of " << plain.sizes() << ", result " << i;
          }
        }
      }
    }
  });
}

// Two all_gathers: of numbers of values, and of values. Shards of another
// dimension become shards of the compared dimension by an all_to_all.
TEST(Unique, OfNeighboursAndSlicesMovesOnlyDistinctValues) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto plain =
        at::arange(2000, at::kDouble).floor_divide(400).unsqueeze(1);
    const auto x = place(plain.expand({2000, 2}), mesh, {Shard(0)});
    const auto bytes = [&](const at::Tensor& t, UniqueFn fn) {
      const CommDebugMode comm;
      const auto found = fn(t, true, false);
      EXPECT_EQ(comm.total({.kind = CollectiveKind::kAllGather}).count, 2);
      EXPECT_EQ(DTensor(found[1]).placements(), Placements{Shard(0)});
      return comm.total({.kind = CollectiveKind::kAllGather}).payload_bytes;
    };
    const auto rows = [](const at::Tensor& t, bool inverse, bool counts) {
      const auto [a, b, c] = at::unique_dim(t, 0, true, inverse, counts);
      return TensorList{a, b, c};
    };
    const auto neighbours = [](const at::Tensor& t, bool inverse, bool counts) {
      const auto [a, b, c] = at::unique_consecutive(t, inverse, counts);
      return TensorList{a, b, c};
    };
    EXPECT_EQ(bytes(x, neighbours), 8 + 3 * 8);
    EXPECT_EQ(bytes(x, rows), 8 + 3 * 2 * 8);
    EXPECT_EQ(
        bytes(place(plain.expand({2000, 2}), mesh, {Shard(1)}), rows),
        8 + 3 * 2 * 8);
  });
}

// Each NaN is an element of its own, because NaN equals nothing, not even
// another NaN.
TEST(Unique, KeepsEachNan) {
  const auto x = numbers({6, 3}, 1).masked_fill(numbers({6, 3}, 2).gt(4), NAN);
  const auto truth = unique_of(x, true, true);
  run_ranks(3, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    for (const auto& p : {Shard(0), Shard(1)}) {
      const auto found = unique_of(place(x, mesh, {p}), true, true);
      const auto values = full_tensor(found[0]);
      EXPECT_TRUE(at::allclose(values, truth[0], 0, 0, /*equal_nan=*/true));
      EXPECT_TRUE(at::equal(full_tensor(found[2]), truth[2]));
      const auto back = values.take(full_tensor(found[1]));
      EXPECT_TRUE(at::allclose(back, x, 0, 0, /*equal_nan=*/true));
    }
  });
}

TEST(Unique, KeepsTheInverseSharded) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2});
    const auto x =
        place(repeating({5, 4}, at::kLong), mesh, {Shard(1), Shard(0)});
    const auto found = unique_of(x, true, true);
    EXPECT_EQ(DTensor(found[1]).placements(), DTensor(x).placements());
    EXPECT_TRUE(DTensor(found[0]).spec()->is_replicated());
    EXPECT_TRUE(DTensor(found[2]).spec()->is_replicated());
  });
}

// Numbers of elements, and elements, of each rank; and a sum of counts.
TEST(Unique, MovesOnlyDistinctElements) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto plain = at::arange(2000, at::kDouble).remainder(10);
    const auto x = place(plain, mesh, {Shard(0)});
    const CommDebugMode comm;
    unique_of(x, true, false);
    EXPECT_EQ(comm.total({.kind = CollectiveKind::kAllGather}).count, 2);
    EXPECT_EQ(comm.get_total_counts(), 2);
    EXPECT_EQ(comm.total().payload_bytes, 8 + 10 * 8);
    const CommDebugMode counting;
    unique_of(x, true, true);
    EXPECT_EQ(counting.total({.kind = CollectiveKind::kAllGather}).count, 2);
    EXPECT_EQ(counting.total({.kind = CollectiveKind::kAllReduce}).count, 1);
    EXPECT_EQ(counting.get_total_counts(), 3);
    const CommDebugMode none;
    unique_of(place(plain, mesh, {Replicate()}), true, true);
    EXPECT_EQ(none.get_total_counts(), 0);
  });
  run_ranks(1, [] {
    const auto mesh = init_device_mesh(at::kCPU, {1});
    const CommDebugMode comm;
    unique_of(place(at::arange(4), mesh, {Shard(0)}), true, true);
    EXPECT_EQ(comm.get_total_counts(), 0);
  });
}

OpCase
repeats(std::string name, at::Tensor x, at::Tensor of_counts, int64_t dim) {
  OpCase c{
      std::move(name),
      {std::move(x), std::move(of_counts)},
      [dim](const TensorList& in) {
        return TensorList{at::repeat_interleave(in[0], in[1], dim)};
      }};
  return c;
}

TEST(RepeatInterleave, IsThatOfThePlainTensor) {
  const auto x = numbers({5, 4}, 1);
  const auto counts = at::tensor({2, 0, 3, 1, 1}, at::kLong);
  check_cases({
      repeats("rows", x, counts, 0),
      repeats("columns", x, counts.slice(0, 1), 1),
      repeats("columns in memory", numbers({4, 5}, 1).t(), counts, -2),
      repeats("no rows", x, at::zeros({5}, at::kLong), 0),
      repeats("one count", x, at::tensor({2}, at::kLong), 0),
      unary(
          "a number",
          x,
          [](const at::Tensor& t) { return at::repeat_interleave(t, 3, 1); }),
  });
}

// The shards of other dimensions stay where they are. The counts are gathered.
// A number of repetitions leaves each rank's elements where they are.
TEST(RepeatInterleave, RepeatsShardsByANumber) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    for (const int64_t size : {2, 6, 7}) {
      const auto plain = numbers({size, 4}, 1);
      auto x = leaf(place(plain, mesh, {Shard(0)}));
      const CommDebugMode comm;
      const auto y = at::repeat_interleave(x, 3, 0);
      EXPECT_TRUE(DTensor(y).placements()[0].is_sharded(0));
      y.backward(y.detach());
      EXPECT_EQ(comm.get_total_counts(), 0) << size;
      EXPECT_TRUE(same(full_tensor(y).detach(), plain.repeat_interleave(3, 0)));
    }
  });
}

TEST(RepeatInterleave, LeavesOtherDimsSharded) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto plain = numbers({4, 6}, 1);
    const auto counts = at::tensor({2, 0, 3, 1}, at::kLong);
    auto x = leaf(place(plain, mesh, {Shard(1)}));
    for (const auto& p : {Placement(Replicate()), Placement(Shard(0))}) {
      const at::Tensor n = distribute_tensor(counts, mesh, {p}, std::nullopt);
      const CommDebugMode comm;
      const auto y = at::repeat_interleave(x, n, 0);
      EXPECT_EQ(DTensor(y).placements(), Placements{Shard(1)});
      EXPECT_EQ(comm.get_total_counts(), p.is_replicate() ? 0 : 1);
      EXPECT_EQ(comm.total().payload_bytes, p.is_replicate() ? 0 : 2 * 8);
      const CommDebugMode backward;
      y.backward(y.detach());
      EXPECT_EQ(backward.get_total_counts(), 0);
    }
    const CommDebugMode comm;
    const auto y = at::repeat_interleave(x, 3, 0);
    EXPECT_EQ(DTensor(y).placements(), Placements{Shard(1)});
    y.backward(y.detach());
    EXPECT_EQ(comm.get_total_counts(), 0);
  });
}

OpCase scatters(at::Tensor x, at::Tensor of_mask) {
  return {
      "masked_scatter",
      {std::move(x), std::move(of_mask), numbers({40}, 3)},
      [](const TensorList& in) {
        const at::Tensor mask = in[1].detach().gt(0);
        return TensorList{in[0].masked_scatter(mask, in[2])};
      }};
}

TEST(MaskedScatter, IsThatOfThePlainTensor) {
  check_cases({
      scatters(numbers({5, 4}, 1), numbers({5, 4}, 2)),
      scatters(numbers({5, 4}, 1), numbers({5, 1}, 2)),
      scatters(numbers({2, 3, 2}, 1), numbers({3, 2}, 2)),
      scatters(numbers({7}, 1), numbers({7}, 2)),
      scatters(numbers({0, 3}, 1), numbers({0, 3}, 2)),
      scatters(numbers({4}, 1), numbers({5, 4}, 2)),
  });
}

// The ranks exchange how many elements they take. The gradient of source moves
// equally many elements.
TEST(MaskedScatter, WritesTheRowsOfEachRank) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto plain = numbers({16, 4}, 1);
    const auto rows = at::arange(16).lt(6).unsqueeze(1);
    const at::Tensor x = place(plain, mesh, {Shard(0)});
    const at::Tensor mask =
        distribute_tensor(rows, mesh, {Shard(0)}, std::nullopt);
    const auto source = leaf(place(numbers({24}, 3), mesh, {Replicate()}));
    const CommDebugMode comm;
    const auto y = x.masked_scatter(mask, source);
    EXPECT_EQ(comm.get_total_counts(), 1);
    EXPECT_EQ(comm.total().payload_bytes, 8);
    EXPECT_EQ(DTensor(y).placements(), Placements{Shard(0)});
    y.backward(place(plain, mesh, {Shard(0)}));
    EXPECT_LT(comm.total().payload_bytes, 8 + 8 + 2 * 12 * 8 + 8);
    EXPECT_TRUE(
        same(full_tensor(source.grad()), plain.slice(0, 0, 6).flatten()));
    const at::Tensor few = place(numbers({3}, 3), mesh, {Replicate()});
    EXPECT_THROW(x.masked_scatter(mask, few), c10::Error);
    auto written = x.clone();
    written.masked_scatter_(mask, source.detach());
    EXPECT_TRUE(same(full_tensor(written), full_tensor(y).detach()));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
