// SPDX-License-Identifier: BSD-3-Clause
// zeros, ones, empty, full, rand and randn: each rank creates its local shard
// without communication.
#include <dtensor/debug/comm_debug_mode.h>
#include <dtensor/random/random.h>
#include <dtensor/tensor/factories.h>
#include <torch/torch.h>

#include <functional>

#include "support.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

using Make = std::function<
    DTensor(SizesRef, const DeviceMesh&, PlacementsRef, const FactoryOptions&)>;

struct Factory {
  std::string name;
  Make make;
  /// The plain counterpart; returns an undefined tensor if values are
  /// arbitrary.
  std::function<at::Tensor(SizesRef, at::ScalarType)> plain;
};

const std::vector<Factory>& factories() {
  static const std::vector<Factory> all = {
      {"zeros",
       [](auto size, auto& mesh, auto p, auto& o) {
         return dtensor::zeros(size, mesh, p, o);
       },
       [](auto size, auto dtype) { return at::zeros(size, dtype); }},
      {"ones",
       [](auto size, auto& mesh, auto p, auto& o) {
         return dtensor::ones(size, mesh, p, o);
       },
       [](auto size, auto dtype) { return at::ones(size, dtype); }},
      {"full",
       [](auto size, auto& mesh, auto p, auto& o) {
         return dtensor::full(size, 2.5, mesh, p, o);
       },
       [](auto size, auto dtype) { return at::full(size, 2.5, dtype); }},
      {"empty",
       [](auto size, auto& mesh, auto p, auto& o) {
         return dtensor::empty(size, mesh, p, o);
       },
       nullptr},
      {"rand",
       [](auto size, auto& mesh, auto p, auto& o) {
         return dtensor::rand(size, mesh, p, o);
       },
       nullptr},
      {"randn",
       [](auto size, auto& mesh, auto p, auto& o) {
         return dtensor::randn(size, mesh, p, o);
       },
       nullptr}};
  return all;
}

TEST(Factories, GiveEachRankItsPart) {
  for (const int64_t ranks : {1, 2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = mesh_of({ranks});
      for (const auto& factory : factories()) {
        for (const Placement& p : {Shard(0), Shard(1), Replicate()}) {
          const CommDebugMode comm;
          const auto x = factory.make({5, 2}, mesh, {p}, {});
          EXPECT_EQ(comm.get_total_counts(), 0) << factory.name;
          EXPECT_EQ(x.sizes(), at::IntArrayRef({5, 2})) << factory.name;
          EXPECT_EQ(DTensor(x).placements()[0], p) << factory.name;
          EXPECT_EQ(to_local(x).sizes(), DTensor(x).spec()->local_sizes());
          EXPECT_EQ(x.layout(), at::kStrided);
          if (factory.plain) {
            EXPECT_TRUE(
                at::equal(full_tensor(x), factory.plain({5, 2}, at::kFloat)))
                << factory.name;
          }
        }
      }
    });
  }
}

TEST(Factories, TakeADtype) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    for (const auto& factory : factories()) {
      const auto x =
          factory.make({4}, mesh, {Shard(0)}, {.dtype = at::kDouble});
      EXPECT_EQ(x.scalar_type(), at::kDouble) << factory.name;
      EXPECT_EQ(to_local(x).scalar_type(), at::kDouble) << factory.name;
    }
    EXPECT_EQ(dtensor::full({2}, 3, mesh).scalar_type(), at::kLong);
    EXPECT_EQ(dtensor::full({2}, true, mesh).scalar_type(), at::kBool);
    EXPECT_EQ(dtensor::full({2}, 3.5, mesh).scalar_type(), at::kFloat);
  });
}

TEST(Factories, MakeLeaves) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    for (const auto& factory : factories()) {
      const auto x =
          factory.make({4, 2}, mesh, {Shard(0)}, {.requires_grad = true});
      EXPECT_TRUE(x.is_leaf() && x.requires_grad()) << factory.name;
      (x * 3).sum().backward();
      EXPECT_TRUE(at::equal(whole(x.grad()), at::full({4, 2}, 3.F)));
    }
  });
}

TEST(Factories, SayWhatIsWrong) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    EXPECT_EQ(
        error_of<c10::ValueError>([&] { dtensor::zeros({-1}, mesh); }),
        "[zeros] a size is negative: [-1]. Pass sizes of at least 0.");
    EXPECT_EQ(
        error_of<c10::ValueError>(
            [&] { dtensor::ones({2}, mesh, {Partial()}); }),
        "[ones] the values of a partial tensor are reduced over ranks: P(sum). "
        "Use Replicate in place of Partial.");
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
