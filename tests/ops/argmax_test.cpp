// SPDX-License-Identifier: BSD-3-Clause
// argmax, argmin, and max and min with indices over sharded dimensions give the
// plain operator's result on the full tensor. Among equal elements, the first
// wins, and NaN wins over any number.
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/ranks.h>
#include <dtensor/debug/comm_debug_mode.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/dtensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/error_of.h>
#include <torch/torch.h>

#include <limits>
#include <string>
#include <tuple>
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

// Makes a mesh on which collectives cost little beside their bytes, so that
// even small tensors are computed on shards.
DeviceMesh mesh_of_slow_bytes(const std::vector<int64_t>& shape) {
  MeshOptions options;
  for (size_t i = 0; i < shape.size(); ++i) {
    options.cost[std::to_string(i)] = {
        .latency_us = 1e-6, .gigabytes_per_s = 1};
  }
  return init_device_mesh(at::kCPU, shape, {}, options);
}

using Extremes = std::tuple<at::Tensor, at::Tensor>;

void expect_equal(
    const Extremes& d,
    const Extremes& plain,
    const std::string& what) {
  const auto values = full_tensor(std::get<0>(d));
  EXPECT_EQ(values.scalar_type(), std::get<0>(plain).scalar_type());
  EXPECT_TRUE(at::allclose(
      values.to(at::kDouble),
      std::get<0>(plain).to(at::kDouble),
      0,
      0,
      /*equal_nan=*/true))
      << what;
  EXPECT_TRUE(at::equal(full_tensor(std::get<1>(d)), std::get<1>(plain)))
      << what;
}

void expect_as_plain(
    const at::Tensor& whole,
    const DeviceMesh& mesh,
    const Placements& layout) {
  const auto d = distribute_tensor(whole, mesh, layout, std::nullopt);
  for (const bool keepdim : {false, true}) {
    const auto what = to_string(*DTensor(d).spec()) + " all";
    EXPECT_TRUE(at::equal(
        full_tensor(at::argmax(d, std::nullopt, keepdim)),
        at::argmax(whole, std::nullopt, keepdim)))
        << what << "\n"
        << whole;
    EXPECT_TRUE(at::equal(
        full_tensor(at::argmin(d, std::nullopt, keepdim)),
        at::argmin(whole, std::nullopt, keepdim)))
        << what << "\n"
        << whole;
  }
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
      expect_equal(
          at::max(d, dim, keepdim), at::max(whole, dim, keepdim), what);
      expect_equal(
          at::min(d, dim, keepdim), at::min(whole, dim, keepdim), what);
    }
  }
}

TEST(Argmax, MatchesTheFullTensor) {
  const std::vector<Placement> kinds = {
      Replicate(), Shard(0), Shard(1), Shard(1, 2), StridedShard(1, 2)};
  for (const int64_t ranks : {1, 2, 3, 5}) {
    run_ranks(ranks, [&] {
      const auto mesh = mesh_of_slow_bytes({ranks});
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
    const auto mesh = mesh_of_slow_bytes({2, 2});
    uint64_t seed = 100;
    for (const auto& layout : std::vector<Placements>{
             {Shard(1), Shard(1)},
             {Shard(1), Shard(0)},
             {Shard(0), Shard(1)},
             {StridedShard(1, 2), Shard(1)},
             {Replicate(), Shard(1)},
             {Shard(0), Shard(0)}}) {
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
    const auto mesh = mesh_of_slow_bytes({3});
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

TEST(Argmax, OfAllElementsCostsOneSmallCollectivePerMeshDimension) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"a", "b"});
    const auto d = distribute_tensor(
        drawn({20, 5000}, at::kFloat, 1),
        mesh,
        {Shard(0), Shard(1)},
        std::nullopt);
    const CommDebugMode mode;
    at::argmax(d);
    EXPECT_EQ(mode.get_comm_counts()[CollectiveKind::kAllGather], 2);
    EXPECT_EQ(mode.total().count, 2);
    EXPECT_EQ(mode.total().payload_bytes, 2 * 2 * 8);
  });
}

TEST(MaxWithIndex, CostsOneSmallCollectiveAndNoneBackward) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {4}, {"tp"});
    const auto x =
        distribute_tensor(
            drawn({2, 50000}, at::kFloat, 1), mesh, {Shard(1)}, std::nullopt)
            .detach()
            .requires_grad_();
    const CommDebugMode mode;
    const auto values = std::get<0>(at::max(x, -1));
    EXPECT_EQ(mode.get_comm_counts()[CollectiveKind::kAllGather], 1);
    EXPECT_EQ(mode.total().payload_bytes, 2 * 2 * 8);
    const auto g =
        torch::autograd::grad({values}, {x}, {at::ones_like(values)})[0];
    EXPECT_EQ(mode.total().count, 1);
    EXPECT_EQ(DTensor(g).placements()[0], Shard(1));
  });
}

// Small shards are cheaper to move.
TEST(MaxWithIndex, MovesShardsWhereThatIsFaster) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto d = distribute_tensor(
        drawn({8, 2}, at::kFloat, 1), mesh, {Shard(1)}, std::nullopt);
    EXPECT_EQ(DTensor(std::get<0>(d.max(1))).placements()[0], Shard(0));
  });
}

TEST(MaxWithIndex, OfBooleans) {
  run_ranks(2, [] {
    const auto mesh = mesh_of_slow_bytes({2});
    const auto plain = drawn({3, 80}, at::kLong, 1).eq(1);
    const auto d = distribute_tensor(plain, mesh, {Shard(1)}, std::nullopt);
    expect_equal(d.max(1), plain.max(1), "max");
    expect_equal(d.min(1), plain.min(1), "min");
  });
}

TEST(MaxWithIndex, GradientsMatchTheFullTensor) {
  const auto derivatives = [](const at::Tensor& x, bool keepdim) {
    const auto values = std::get<0>(x.max(1, keepdim)) +
        std::get<0>(x.square().min(1, keepdim));
    const auto g = torch::autograd::grad(
        {values.pow(3).sum()}, {x}, {}, std::nullopt, true)[0];
    const auto h = torch::autograd::grad({g.square().sum()}, {x})[0];
    return std::vector<at::Tensor>{values.detach(), g.detach(), h};
  };
  for (const int64_t ranks : {1, 2, 3, 5}) {
    run_ranks(ranks, [&] {
      const auto mesh = mesh_of_slow_bytes({ranks});
      auto generator = at::detail::createCPUGenerator(4);
      const auto x = at::randn({3, 41, 2}, generator, at::kDouble);
      for (const auto& p : {Shard(1), StridedShard(1, 2), Shard(0)}) {
        for (const bool keepdim : {false, true}) {
          const auto wanted = derivatives(x.clone().requires_grad_(), keepdim);
          const auto d = distribute_tensor(x, mesh, {p}, std::nullopt);
          const auto got = derivatives(d.detach().requires_grad_(), keepdim);
          for (size_t i = 0; i < wanted.size(); ++i) {
            EXPECT_TRUE(at::allclose(full_tensor(got[i]), wanted[i], 1e-12))
                << ranks << " " << to_string(p) << " derivative " << i;
          }
        }
      }
    });
  }
}

TEST(Argmax, OfADtypeWithoutOrderThrowsOnRanksWithoutElementsToo) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    const auto x =
        distribute_tensor(at::ones({1, 4}, at::kBool), mesh, {Shard(0)});
    for (const auto dim :
         {std::optional<int64_t>(0), std::optional<int64_t>()}) {
      const auto is_refused = ::testing::AnyOf(
          ::testing::HasSubstr("does not support bool input"),
          ::testing::HasSubstr("cannot infer the shapes")); // LibTorch 2.15
      EXPECT_THAT(test_text::error_of([&] { at::argmax(x, dim); }), is_refused);
      EXPECT_THAT(test_text::error_of([&] { at::argmin(x, dim); }), is_refused);
    }
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
