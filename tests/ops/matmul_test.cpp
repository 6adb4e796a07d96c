// SPDX-License-Identifier: BSD-3-Clause
// Products of vectors and matrices whose shapes LibTorch cannot infer in
// advance, or that have fewer dimensions than usual.
#include "same_or_error.h"

namespace dtensor::testing {
namespace TEST_SOURCE {

const Placements kVector = {Replicate(), Shard(0), Partial()};
const Placements kMatrix = {Replicate(), Shard(0), Shard(1), Partial()};
const Placements kBatch =
    {Replicate(), Shard(0), Shard(1), Shard(2), Partial()};

TEST(Matmul, ProductsOfVectors) {
  const Tensors vectors{uniform({5}, 1), uniform({5}, 2)};
  const std::vector<Placements> layouts{kVector, kVector};
  expect_same(
      vectors, layouts, [](const Tensors& t) { return at::dot(t[0], t[1]); });
  expect_same(
      vectors, layouts, [](const Tensors& t) { return at::vdot(t[0], t[1]); });
  expect_same(vectors, layouts, [](const Tensors& t) {
    return at::matmul(t[0], t[1]);
  });
  expect_same(
      vectors, layouts, [](const Tensors& t) { return at::inner(t[0], t[1]); });
  const Tensors complex{
      at::complex(uniform({5}, 1), uniform({5}, 2)),
      at::complex(uniform({5}, 3), uniform({5}, 4))};
  expect_same(
      complex,
      {{Replicate(), Shard(0)}, {Replicate(), Shard(0)}},
      [](const Tensors& t) { return at::vdot(t[0], t[1]); });
}

TEST(Matmul, FullContractions) {
  expect_same(
      {uniform({6, 6}, 1), uniform({6, 6}, 2)},
      {kMatrix, kMatrix},
      [](const Tensors& t) {
        return at::tensordot(t[0], t[1], {0, 1}, {0, 1});
      });
}

TEST(Matmul, SumsOfProducts) {
  for (const auto& bias : {uniform({3, 2}, 3), uniform({2}, 3)}) {
    expect_same(
        {bias, uniform({4, 3, 5}, 1), uniform({4, 5, 2}, 2)},
        {{Replicate(), Shard(0)}, kBatch, kBatch},
        [](const Tensors& t) { return at::addbmm(t[0], t[1], t[2], 0.5, 2); });
  }
}

// In place, addbmm_ resizes self as LibTorch does.
TEST(Matmul, SumsOfProductsInPlace) {
  const auto a = uniform({4, 3, 5}, 1);
  const auto b = uniform({4, 5, 2}, 2);
  for (const auto& self : {uniform({3, 2}, 3), uniform({1}, 3)}) {
    expect_same(
        {self, a, b},
        {{Replicate(), Shard(0)}, kBatch, {Replicate(), Shard(2)}},
        [](const Tensors& t) {
          auto x = t[0].clone();
          x.addbmm_(t[1], t[2]);
          return x + 1;
        });
  }
}

TEST(Matmul, VectorsAreDifferentiable) {
  const auto a = uniform({5}, 1);
  const auto b = uniform({5}, 2);
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    for (const auto& p : {Shard(0), Replicate()}) {
      for (const auto& q : {Shard(0), Replicate()}) {
        auto x = place(a, mesh, p).requires_grad_();
        auto y = place(b, mesh, q).requires_grad_();
        (at::dot(x, y) + at::matmul(x, y)).backward();
        EXPECT_TRUE(close(full(x.grad()), 2 * b)) << p << q;
        EXPECT_TRUE(close(full(y.grad()), 2 * a)) << p << q;
      }
    }
  });
}

TEST(Matmul, VectorsThatDoNotFit) {
  EXPECT_EQ(
      error_on_ranks([](const DeviceMesh& mesh) {
        at::dot(
            place(at::ones({5}), mesh, Shard(0)),
            place(at::ones({4}), mesh, Shard(0)));
      }),
      "[aten::dot] needs two vectors of the same length and dtype, got f32[5] "
      "on (tp=2): S(0) and f32[4] on (tp=2): S(0). Reshape or convert them.");
  EXPECT_EQ(
      error_on_ranks([](const DeviceMesh& mesh) {
        at::addbmm(
            place(at::ones({2, 2}), mesh, Shard(0)),
            place(at::ones({3, 2, 4}), mesh, Shard(0)),
            place(at::ones({3, 5, 2}), mesh, Shard(0)));
      }),
      "[aten::addbmm] needs batches of matrices that can be multiplied, got "
      "f32[3, 2, 4] on (tp=2): S(0) and f32[3, 5, 2] on (tp=2): S(0). Reshape "
      "or convert them.");
}

TEST(Matmul, ABiasOfNoDimensionsBesideAnEmptyShard) {
  for (const auto rows : {1, 3}) {
    expect_same(
        {at::full({}, 0.5, at::kDouble),
         uniform({rows, 4}, 1),
         uniform({4}, 2)},
        {{Replicate()}, kMatrix, kVector},
        [](const Tensors& t) { return at::addmv(t[0], t[1], t[2]); });
    expect_same(
        {at::full({}, 0.5, at::kDouble),
         uniform({rows, 4}, 1),
         uniform({4, 2}, 2)},
        {{Replicate()}, kMatrix, kMatrix},
        [](const Tensors& t) { return at::addmm(t[0], t[1], t[2]); });
    expect_same(
        {at::full({1}, 0.5, at::kDouble),
         uniform({rows, 4}, 1),
         uniform({4}, 2)},
        {{Replicate(), Shard(0), Partial()}, kMatrix, kVector},
        [](const Tensors& t) { return at::addmv(t[0], t[1], t[2]); });
  }
}

TEST(Matmul, LinearWithAVectorOfWeights) {
  for (const auto& x :
       {uniform({5}, 1), uniform({2, 5}, 1), uniform({2, 3, 5}, 1)}) {
    auto layouts = Placements{Replicate(), Partial()};
    for (int64_t d = 0; d < x.dim(); ++d) {
      layouts.push_back(Shard(d));
    }
    expect_same({x, uniform({5}, 2)}, {layouts, kVector}, [](const Tensors& t) {
      return at::linear(t[0], t[1]);
    });
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor::testing
