// SPDX-License-Identifier: BSD-3-Clause
// argmax and argmin over a sharded dimension give the plain operator's result
// on the full tensor: of equal elements the first, and NaN before any number.
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/ranks.h>
#include <dtensor/debug/comm_debug_mode.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/dtensor.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <vector>

namespace dtensor {
namespace TEST_SOURCE {

// Returns few distinct numbers, so that many are equal.
at::Tensor drawn(at::IntArrayRef sizes, at::ScalarType dtype, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  auto t = at::randint(-2, 3, sizes, generator, at::kLong);
  if (!at::isFloatingType(dtype)) {
    return t.abs().to(dtype);
  }
  auto real = t.to(at::kDouble);
  const auto infinity = std::numeric_limits<double>::infinity();
  real.masked_fill_(t.eq(2), infinity).masked_fill_(t.eq(-2), -infinity);
  const auto none = at::randint(0, 9, sizes, generator, at::kLong).eq(0);
  return real.masked_fill(none, std::nan("")).to(dtype);
}

void expect_as_plain(
    const at::Tensor& whole,
    const DeviceMesh& mesh,
    const Placements& layout) {
  const auto d = distribute_tensor(whole, mesh, layout, std::nullopt);
  for (int64_t dim = -whole.dim(); dim < whole.dim(); ++dim) {
    for (const bool keepdim : {false, true}) {
      const auto what =
          to_string(*DTensor(d).spec()) + " dim " + std::to_string(dim);
      EXPECT_TRUE(at::equal(
          full_tensor(at::argmax(d, dim, keepdim)),
          at::argmax(whole, dim, keepdim)))
          << what << "\n"
          << whole;
      EXPECT_TRUE(at::equal(
          full_tensor(at::argmin(d, dim, keepdim)),
          at::argmin(whole, dim, keepdim)))
          << what << "\n"
          << whole;
    }
  }
}

TEST(Argmax, IsThatOfTheWhole) {
  const std::vector<Placement> kinds = {
      Replicate(), Shard(0), Shard(1), Shard(1, 2), StridedShard(1, 2)};
  for (const int64_t ranks : {1, 2, 3, 5}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      uint64_t seed = 0;
      for (const auto dtype :
           {at::kDouble, at::kFloat, at::kBFloat16, at::kLong, at::kByte}) {
        for (const int64_t columns : {1, 2, 4, 7}) {
          for (const auto& kind : kinds) {
            expect_as_plain(drawn({3, columns}, dtype, ++seed), mesh, {kind});
          }
        }
      }
    });
  }
}

TEST(Argmax, OnTwoMeshDimensions) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"a", "b"});
    uint64_t seed = 100;
    for (const auto& layout : std::vector<Placements>{
             {Shard(1), Shard(1)},
             {Shard(1), Shard(0)},
             {Shard(0), Shard(1)},
             {StridedShard(1, 2), Shard(1)},
             {Replicate(), Shard(1)}}) {
      for (const int64_t columns : {1, 3, 6}) {
        expect_as_plain(drawn({2, columns}, at::kDouble, ++seed), mesh, layout);
        expect_as_plain(
            drawn({2, columns, 2}, at::kFloat, ++seed), mesh, layout);
      }
    }
  });
}

TEST(Argmax, OfTheLeastNumbersIsTheFirst) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3}, {"tp"});
    const auto least = std::numeric_limits<int64_t>::lowest();
    const auto most = std::numeric_limits<int64_t>::max();
    expect_as_plain(at::full({1, 2}, least, at::kLong), mesh, {Shard(1)});
    expect_as_plain(at::full({1, 2}, most, at::kLong), mesh, {Shard(1)});
    expect_as_plain(
        at::full({1, 2}, -std::numeric_limits<double>::infinity()),
        mesh,
        {Shard(1)});
  });
}

TEST(Argmax, OfNoRowsIsEmptyOnAllRanks) {
  for (const int64_t ranks : {1, 2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      const auto d = [&](const at::Tensor& whole, const Placement& p) {
        return distribute_tensor(whole, mesh, {p}, std::nullopt);
      };
      const auto none = at::empty({2, 0, 3});
      for (const auto& p : {Shard(0), Shard(2)}) {
        const auto place = full_tensor(at::argmax(d(none, p), p.dim()));
        EXPECT_EQ(place.sizes(), at::argmax(none, p.dim()).sizes());
        EXPECT_EQ(
            full_tensor(at::argmin(d(none, p), p.dim(), true)).sizes(),
            at::argmin(none, p.dim(), true).sizes());
      }
      EXPECT_THROW(at::argmax(d(none, Shard(1)), 1), c10::Error);
    });
  }
}

TEST(Argmax, CostsOneSmallCollective) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {4}, {"tp"});
    const auto logits = distribute_tensor(
        drawn({2, 50000}, at::kFloat, 1), mesh, {Shard(1)}, std::nullopt);
    const CommDebugMode mode;
    at::argmax(logits, -1);
    EXPECT_EQ(mode.total().count, 1);
    EXPECT_LE(mode.total().payload_bytes, 4 * 2 * 2 * 8);
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
