// SPDX-License-Identifier: BSD-3-Clause
// zeros, ones, empty, full, linspace, logspace, rand and randn: each rank
// creates its local shard without communication.
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

struct Ends {
  at::Scalar start;
  at::Scalar end;
  int64_t steps;
};

const std::vector<Ends> kEnds = {
    {0, 1, 7},
    {0.5, 3.7, 5},
    {3, -7, 12},
    {0.9, 5, 1},
    {0, 1, 0},
    {0.9, 4.9, 2}};

void expect_close(const at::Tensor& actual, const at::Tensor& expected) {
  EXPECT_EQ(actual.scalar_type(), expected.scalar_type());
  EXPECT_TRUE(at::allclose(actual, expected)) << actual << expected;
}

TEST(Factories, SpaceValuesEvenly) {
  for (const int64_t ranks : {1, 2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = mesh_of({ranks});
      for (const Placement& p :
           {Shard(0), Replicate(), Shard(0, 2), StridedShard(0, 2)}) {
        for (const auto& [start, end, steps] : kEnds) {
          for (const auto dtype : {at::kFloat, at::kDouble, at::kLong}) {
            const CommDebugMode comm;
            const auto x = dtensor::linspace(
                start, end, steps, mesh, {p}, {.dtype = dtype});
            const auto y = dtensor::logspace(
                start, end, steps, 2.5, mesh, {p}, {.dtype = dtype});
            EXPECT_EQ(comm.get_total_counts(), 0);
            EXPECT_EQ(to_local(x).sizes(), DTensor(x).spec()->local_sizes());
            expect_close(
                full_tensor(x), at::linspace(start, end, steps, dtype));
            expect_close(
                full_tensor(y), at::logspace(start, end, steps, 2.5, dtype));
          }
        }
      }
    });
  }
}

TEST(Factories, SpaceComplexValues) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    const c10::complex<double> end(3, -4);
    expect_close(
        full_tensor(dtensor::linspace(1, end, 5, mesh, {Shard(0)})),
        at::linspace(1, end, 5));
    const auto leaf = dtensor::logspace(
        0, 3, 4, 10.0, mesh, {Shard(0)}, {.requires_grad = true});
    EXPECT_TRUE(leaf.is_leaf() && leaf.requires_grad());
    expect_close(full_tensor(leaf.detach()), at::logspace(0, 3, 4));
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
    EXPECT_EQ(
        error_of<c10::TypeError>([&] {
          dtensor::linspace(0, 1, 4, mesh, {}, {.dtype = at::kBool});
        }),
        "[linspace] the dtype is bool, which has no evenly spaced values. Use "
        "a numeric dtype.");
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
