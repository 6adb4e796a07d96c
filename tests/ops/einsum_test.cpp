// SPDX-License-Identifier: BSD-3-Clause
// einsum and tensordot in all layouts, with gradients.
#include "oracle.h"

#include <dtensor/error.h>
#include <dtensor/parallel/autocast.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::testing;

struct Equation {
  std::string text;
  std::vector<std::vector<int64_t>> sizes;
};

void expect_same(
    const std::string& name,
    const Tensors& operands,
    const TensorFunction& fn) {
  SCOPED_TRACE(name);
  SameAsPlainOptions options;
  options.meshes = {{3}, {2, 2}};
  options.layouts = 24;
  EXPECT_NO_THROW(expect_same_as_plain(fn, operands, options));
}

Tensors variables(const std::vector<std::vector<int64_t>>& sizes) {
  Tensors all;
  for (const auto& size : sizes) {
    all.push_back(variable(size, all.size() + 1));
  }
  return all;
}

TEST(Einsum, IsThatOfTheFullTensors) {
  const std::vector<Equation> equations = {
      {"ij,jk->ik", {{4, 5}, {5, 2}}},
      {"ij , jk", {{4, 5}, {5, 2}}},
      {"ba,bC", {{4, 5}, {4, 2}}}, // the output is Ca
      {"ij,ij->ij", {{4, 5}, {4, 5}}},
      {"ij,ij", {{4, 5}, {4, 5}}},
      {"i,j->ij", {{4}, {5}}},
      {"ij,kl->", {{2, 3}, {4, 2}}},
      {"i,->i", {{5}, {}}},
      {"bhqd,bhkd->bhqk", {{2, 3, 5, 2}, {2, 3, 4, 2}}},
      {"bi,ij,jk->bk", {{4, 3}, {3, 5}, {5, 2}}},
      {"...ij,...jk->...ik", {{2, 1, 3, 4}, {5, 4, 2}}},
      {"...ij,jk", {{2, 3, 3, 4}, {4, 2}}},
      {"i...,i...->...", {{4, 3}, {4, 2, 3}}},
      {"ii,ij->j", {{4, 4}, {4, 3}}},
      {"ij,jk->ik", {{3, 1}, {4, 5}}}, // j is broadcast
      {"ij,jk->ik", {{0, 5}, {5, 2}}},
      {"ij,jk->ik", {{4, 0}, {0, 2}}},
      {"ij->ji", {{4, 5}}},
      {"ij->", {{4, 5}}},
      {"ii->i", {{4, 4}}},
      {"...ij->...j", {{2, 4, 5}}},
  };
  for (const auto& equation : equations) {
    expect_same(
        equation.text, variables(equation.sizes), [&](const Tensors& t) {
          return Tensors{at::einsum(equation.text, t)};
        });
  }
}

TEST(Einsum, TensordotIsThatOfTheFullTensors) {
  struct Case {
    std::vector<std::vector<int64_t>> sizes;
    std::vector<int64_t> self, other;
  };
  const std::vector<Case> cases = {
      {{{4, 3, 5}, {5, 3, 2}}, {1, 2}, {1, 0}},
      {{{4, 3}, {3, 2}}, {-1}, {0}},
      {{{4, 3}, {2, 5}}, {}, {}},
      {{{4, 1}, {3, 2}}, {1}, {0}}, // dimension 1 is broadcast
      {{{4, 3}, {4, 3}}, {0, 1}, {0, 1}},
      {{{4, 3}, {3, 4}}, {0, 1}, {1, 0}},
      {{{}, {}}, {}, {}},
  };
  for (const auto& c : cases) {
    expect_same("tensordot", variables(c.sizes), [&](const Tensors& t) {
      return Tensors{at::tensordot(t[0], t[1], c.self, c.other)};
    });
  }
}

// Products of flattened dimensions could not keep these shardings.
TEST(Einsum, KeepsShardingsOfSeveralDimensions) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    const auto q = uniform({2, 3, 5, 2}, 1);
    const auto k = uniform({2, 3, 4, 2}, 2);
    const auto heads = distribute_tensor(q, mesh, {Shard(1)});
    const auto scores = at::einsum(
        "bhqd,bhkd->bhqk", {heads, distribute_tensor(k, mesh, {Shard(1)})});
    EXPECT_EQ(DTensor(scores).placements()[0], Shard(1));
    const auto sum = DTensor::from_local(q, mesh, {Partial()});
    const auto keys = distribute_tensor(k, mesh, {Shard(3)});
    EXPECT_TRUE(at::allclose(
        full_tensor(at::einsum("bhqd,bhkd->bhqk", {sum, keys})),
        at::einsum("bhqd,bhkd->bhqk", {3 * q, k})));
  });
}

// LibTorch orders the result of a contraction over one element differently.
TEST(Einsum, KeepsTheOrderOfTheFullResult) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    const auto a = uniform({3, 3}, 1);
    const auto b = uniform({3, 3}, 2);
    const auto product = at::einsum(
        "ij,jk->ki",
        {distribute_tensor(a, mesh, {Shard(1)}),
         distribute_tensor(b, mesh, {Shard(0)})});
    const auto plain = at::einsum("ij,jk->ki", {a, b});
    EXPECT_EQ(product.strides(), plain.strides());
    EXPECT_EQ(to_local(product).strides(), plain.strides());
  });
}

TEST(Einsum, OfOneOperandIsAView) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = distribute_tensor(at::zeros({3, 3}), mesh, {Replicate()});
    at::einsum("ii->i", {x}).fill_(1);
    EXPECT_TRUE(at::equal(full_tensor(x), at::eye(3)));
  });
}

// The results of one operand are views, also of copied views.
TEST(Einsum, OfOneOperandSeesWrites) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const std::vector<std::function<at::Tensor(const at::Tensor&)>> views = {
        [](const at::Tensor& t) { return at::einsum("ij->ij", {t}); },
        [](const at::Tensor& t) {
          return at::broadcast_tensors({t, t})[0];
        }};
    for (const auto& view : views) {
      const auto written = [&](const at::Tensor& x) {
        auto z = view(x.slice(0, 1, 3));
        z.mul_(2);
        x.add_(1);
        const auto seen = z.clone();
        z.sub_(0.5);
        return Tensors{full_tensor(seen), full_tensor(x)};
      };
      const auto plain = at::arange(24, at::kDouble).view({4, 6});
      const auto expected = written(plain.clone());
      for (const auto& p :
           {Placement(Shard(0)), Placement(Shard(1)), Placement(Replicate())}) {
        const auto mine = written(distribute_tensor(plain, mesh, {p}));
        EXPECT_TRUE(at::equal(mine[0], expected[0])) << p;
        EXPECT_TRUE(at::equal(mine[1], expected[1])) << p;
        const auto w = distribute_tensor(plain, mesh, {p});
        const auto factor =
            distribute_tensor(plain, mesh, {p}).requires_grad_();
        const auto product = (w * factor).sum();
        view(w).mul_(2);
        EXPECT_THROW(product.backward(), c10::Error) << p;
      }
    }
  });
}

// Autocast casts the operands of products, but not of other operators.
TEST(Einsum, HasTheDtypesOfAutocast) {
  const auto a = at::rand({4, 5});
  const auto b = at::rand({5, 4});
  const std::vector<std::function<at::Tensor(at::Tensor, at::Tensor)>> calls = {
      [](auto x, auto y) {
        return at::einsum("ij,jk", {x, y});
      },
      [](auto x, auto y) {
        return at::einsum("ij,ji->ij", {x, y});
      },
      [](auto x, auto y) {
        return at::einsum("ij,jk,ij->ki", {x, y, x});
      },
      [](auto x, auto y) { return at::tensordot(x, y, {1}, {0}); },
      [](auto x, auto y) { return at::inner(x, y.t()); }};
  const auto under_autocast = [](const auto& call, auto x, auto y) {
    const Autocast autocast(at::kCPU, at::kBFloat16);
    return call(x, y);
  };
  run_ranks(3, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    for (const auto& call : calls) {
      const auto expected = under_autocast(call, a, b);
      for (const auto& [p, q] : std::vector<std::pair<Placement, Placement>>{
               {Shard(1), Shard(0)},
               {Shard(0), Replicate()},
               {Replicate(), Shard(1)},
               {Replicate(), Replicate()}}) {
        const auto mine = full_tensor(under_autocast(
            call,
            distribute_tensor(a, mesh, {p}),
            distribute_tensor(b, mesh, {q})));
        EXPECT_EQ(mine.scalar_type(), expected.scalar_type());
        EXPECT_TRUE(at::allclose(mine, expected, 0.03)) << p << q;
      }
    }
  });
}

TEST(Einsum, ReportsTheErrorsOfLibTorch) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = distribute_tensor(at::ones({4, 3}), mesh, {Shard(0)});
    for (const auto* text : {"ij,jk->ik", "ij,i", "ijk,ij->k", "ij->ij"}) {
      std::string expected;
      try {
        at::einsum(text, {at::ones({4, 3}), at::ones({4, 3})});
      } catch (const c10::Error& error) {
        expected = error.what_without_backtrace();
      }
      if (expected.empty()) {
        continue; // is valid
      }
      try {
        at::einsum(text, {x, x});
        ADD_FAILURE() << text;
      } catch (const c10::Error& error) {
        EXPECT_EQ(error.what_without_backtrace(), expected);
      }
    }
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
