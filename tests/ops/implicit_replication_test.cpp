// SPDX-License-Identifier: BSD-3-Clause
// Tests of the implicit_replication scope.
#include <ATen/DTensorState.h>
#include <dtensor/ops/implicit_replication.h>
#include <dtensor/parallel/linear_styles.h>
#include <dtensor/parallel/style.h>

#include "tests/ops/against_plain.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::against_plain;
namespace F = torch::nn::functional;

using Program = std::function<at::Tensor(const at::Tensor&)>;

const std::vector<std::vector<int64_t>> kMeshes{{1}, {2}, {3}, {2, 2}};

// Checks value and gradient of programs that mix a DTensor with plain tensors,
// in every layout, cold and warm. The backward pass runs outside of the scope.
void expect_as_plain(const at::Tensor& full, const Program& program) {
  auto truth = leaf(full);
  const auto value = program(truth);
  value.pow(2).sum().backward();
  for (const auto& shape : kMeshes) {
    run_ranks(c10::multiply_integers(shape), [&] {
      const auto mesh = init_device_mesh(at::kCPU, shape);
      for (const auto& layout : layouts(full.dim(), shape.size(), true)) {
        for (int call = 0; call < 2; ++call) {
          const auto x = leaf(place(full, mesh, layout));
          at::Tensor mine;
          {
            const auto scope = implicit_replication();
            mine = program(x);
          }
          ASSERT_TRUE(is_dtensor(mine));
          mine.pow(2).sum().backward();
          const auto where = to_string(*DTensor(x).spec());
          EXPECT_TRUE(at::allclose(
              DTensor(mine).full_tensor().detach(), value.detach()))
              << where;
          EXPECT_TRUE(
              at::allclose(DTensor(x.grad()).full_tensor(), truth.grad()))
              << where;
        }
      }
    });
  }
}

TEST(ImplicitReplication, OfPointwiseOperands) {
  const auto x = numbers({5, 4}, 1);
  const auto mask = numbers({5, 4}, 2) > 0;
  const auto row = numbers({4}, 3);
  expect_as_plain(x, [&](const at::Tensor& t) { return t * row + mask; });
  expect_as_plain(x, [&](const at::Tensor& t) { return row - t; });
  expect_as_plain(
      x, [&](const at::Tensor& t) { return at::where(mask, t, row); });
  expect_as_plain(
      x, [&](const at::Tensor& t) { return t.masked_fill(mask, 0.5); });
  expect_as_plain(x, [&](const at::Tensor& t) {
    auto y = t * 1;
    y.mul_(row);
    return y;
  });
}

TEST(ImplicitReplication, OfIndicesAndLists) {
  const auto x = numbers({5, 4}, 1);
  const auto ids = at::tensor({3, 0, 3}, at::kLong);
  expect_as_plain(
      x, [&](const at::Tensor& t) { return t.index_select(0, ids); });
  expect_as_plain(x, [&](const at::Tensor& t) { return t.index({ids}); });
  expect_as_plain(
      x, [&](const at::Tensor& t) { return at::embedding(t, ids); });
  expect_as_plain(x, [&](const at::Tensor& t) {
    return at::cat({t, numbers({2, 4}, 5), t});
  });
  expect_as_plain(x, [&](const at::Tensor& t) {
    return F::cross_entropy(t, at::tensor({0, 3, 1, 1, 2}, at::kLong));
  });
}

TEST(ImplicitReplication, OfProducts) {
  const auto x = numbers({5, 4}, 1);
  const auto w = numbers({3, 4}, 2);
  expect_as_plain(x, [&](const at::Tensor& t) { return at::mm(t, w.t()); });
  expect_as_plain(x, [&](const at::Tensor& t) {
    return at::linear(t, w, numbers({3}, 3));
  });
  expect_as_plain(x, [&](const at::Tensor& t) { return at::linear(w, t); });
  expect_as_plain(x, [&](const at::Tensor& t) {
    return at::matmul(numbers({2, 3, 5}, 4), t);
  });
  expect_as_plain(x, [&](const at::Tensor& t) {
    return at::layer_norm(t, {4}, numbers({4}, 5), numbers({4}, 6));
  });
}

// A plain operand gets the full gradient as a plain tensor on every rank.
TEST(ImplicitReplication, APlainOperandGetsAPlainGradient) {
  const auto x = numbers({5, 4}, 1);
  const auto truth = leaf(numbers({4}, 2));
  (x * truth).pow(2).sum().backward();
  for (const auto& shape : kMeshes) {
    run_ranks(c10::multiply_integers(shape), [&] {
      const auto mesh = init_device_mesh(at::kCPU, shape);
      for (const auto& layout : layouts(2, shape.size(), true)) {
        const auto row = leaf(numbers({4}, 2));
        at::Tensor y;
        {
          const auto scope = implicit_replication();
          y = at::Tensor(place(x, mesh, layout)) * row;
        }
        y.pow(2).sum().backward();
        ASSERT_FALSE(is_dtensor(row.grad()));
        EXPECT_TRUE(same(row.grad(), truth.grad()));
      }
    });
  }
}

// A plain operand of one element gets a plain gradient, too, although it needs
// no scope as an operand.
TEST(ImplicitReplication, APlainScaleGetsAPlainGradient) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto scale = leaf(at::full({1}, 3.0, at::kDouble));
    const auto scope = implicit_replication();
    const at::Tensor x = place(numbers({5}, 1), mesh, {Shard(0)});
    (x * scale).sum().backward();
    ASSERT_FALSE(is_dtensor(scale.grad()));
    EXPECT_TRUE(same(scale.grad(), numbers({5}, 1).sum().view({1})));
  });
}

TEST(ImplicitReplication, IsTwiceDifferentiable) {
  const auto twice = [](const at::Tensor& x, const at::Tensor& row) {
    const auto first = torch::autograd::grad(
        {(x * row).pow(3).sum()}, {x, row}, {}, true, true);
    const auto penalty =
        first[0].pow(2).sum() + at::Tensor(first[1]).pow(2).sum();
    return torch::autograd::grad({penalty}, {x, row});
  };
  const auto full = numbers({5, 4}, 1) / 8;
  const auto plain = numbers({4}, 2) / 8;
  const auto truth = twice(leaf(full), leaf(plain));
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto scope = implicit_replication();
    const auto mine = twice(leaf(place(full, mesh, {Shard(0)})), leaf(plain));
    EXPECT_TRUE(at::allclose(DTensor(mine[0]).full_tensor(), truth[0]));
    ASSERT_FALSE(is_dtensor(mine[1]));
    EXPECT_TRUE(at::allclose(mine[1], truth[1]));
  });
}

// The scope ends for a call whose decision is cached inside and outside of it.
TEST(ImplicitReplication, EndsWithItsScope) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const at::Tensor x = place(numbers({5, 4}, 1), mesh, {Shard(0)});
    const auto row = numbers({4}, 2);
    const auto add = [&] {
      return same(DTensor(x + row).full_tensor(), numbers({5, 4}, 1) + row);
    };
    const std::string mixed =
        "[aten::add.Tensor] got mixed plain tensor and DTensor: argument "
        "\"other\" is a plain f64[4] next to f64[5, 4] on (2): S(0). Make it a "
        "DTensor with distribute_tensor or from_local, or call the operator on "
        "local tensors (to_local()). If the plain tensor is the same on every "
        "rank, implicit_replication() accepts it as replicated, and "
        "distribute_module distributes the tensors of a module.";
    for (int again = 0; again < 2; ++again) {
      EXPECT_EQ(error_of(add), mixed);
      {
        const auto scope = implicit_replication();
        EXPECT_TRUE(add());
        {
          const auto inner = implicit_replication();
          EXPECT_TRUE(add());
        }
        EXPECT_TRUE(add()); // Python: no longer true
      }
      EXPECT_EQ(error_of(add), mixed);
      try {
        const auto scope = implicit_replication();
        throw 1;
      } catch (int) {
      }
      EXPECT_EQ(error_of(add), mixed);
    }
  });
}

// The scope works together with LibTorch's own flag, which leaves plain tensors
// plain.
TEST(ImplicitReplication, FollowsLibTorchsFlag) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const at::Tensor x = place(numbers({5, 4}, 1), mesh, {Shard(0)});
    const auto row = numbers({4}, 2);
    const auto truth = numbers({5, 4}, 1) + row;
    for (int again = 0; again < 2; ++again) {
      const at::DTensorAllowImplicitReplication flag;
      EXPECT_TRUE(same(DTensor(x + row).full_tensor(), truth));
      const auto scope = implicit_replication();
      EXPECT_TRUE(same(DTensor(x + row).full_tensor(), truth));
    }
  });
}

TEST(ImplicitReplication, AppliesToItsThreadOnly) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const at::Tensor x = place(numbers({4, 4}, 1), mesh, {Shard(0)});
    std::optional<ImplicitReplication> scope;
    if (rank == 0) {
      scope.emplace();
    }
    get_group(mesh, int64_t{0}).barrier();
    const auto text = error_of([&] { x + numbers({4}, 2); });
    EXPECT_EQ(text == "nothing was thrown", rank == 0) << text;
    get_group(mesh, int64_t{0}).barrier();
  });
}

TEST(ImplicitReplication, WrittenTensorsAreRefused) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const at::Tensor x = place(numbers({4}, 1), mesh, {Shard(0)});
    const auto scope = implicit_replication();
    auto plain = numbers({4}, 2);
    const auto before = plain.clone();
    const std::string mixed =
        "got mixed plain tensor and DTensor: argument "
        "\"self\" is a plain f64[4]";
    EXPECT_NE(error_of([&] { plain.add_(x); }).find(mixed), mixed.npos);
    EXPECT_NE(
        error_of([&] {
          at::mul_out(plain, x, x);
        }).find("out is a plain tensor"),
        mixed.npos);
    EXPECT_TRUE(same(plain, before));
  });
}

// Clipping multiplies plain gradients by a replicated DTensor.
TEST(ImplicitReplication, ReplicatedValuesAreWrittenToPlainTensors) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto full = numbers({4}, 1);
    const at::Tensor x = place(full, mesh, {Replicate()});
    const at::Tensor sharded = place(full, mesh, {Shard(0)});
    const auto scale =
        place(at::scalar_tensor(3.0, at::kDouble), mesh, {Replicate()});
    const auto scope = implicit_replication();
    auto plain = numbers({4}, 2);
    const auto before = plain.clone();
    EXPECT_FALSE(is_dtensor(plain.add_(x)));
    EXPECT_TRUE(same(plain, before + full));
    at::mul_out(plain, x, x);
    EXPECT_TRUE(same(plain, full * full));
    plain.copy_(before);
    at::_foreach_mul_({plain, sharded}, scale);
    EXPECT_TRUE(same(plain, before * 3));
    EXPECT_TRUE(same(DTensor(sharded).full_tensor(), full * 3));
    const auto recorded = leaf(place(full, mesh, {Replicate()}));
    EXPECT_NE(error_of([&] { plain.add_(recorded); }), "nothing was thrown");
  });
}

TEST(ImplicitReplication, FusedStepsUpdatePlainParametersBesideDTensors) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto full = numbers({4}, 1);
    const auto gradient = numbers({4}, 2);
    auto plain = full.clone();
    const at::Tensor sharded = place(full, mesh, {Shard(0)});
    const at::Tensor beside = place(gradient, mesh, {Shard(0)});
    const auto step = [&](const at::Tensor& plain_gradient) {
      at::_fused_sgd_(
          {plain, sharded},
          {plain_gradient, beside},
          {},
          0,
          0,
          0.5,
          0,
          false,
          false,
          true);
    };
    EXPECT_NE(error_of([&] { step(gradient); }), "nothing was thrown");
    const auto scope = implicit_replication();
    step(gradient);
    EXPECT_TRUE(same(plain, full - gradient / 2));
    EXPECT_TRUE(same(DTensor(sharded).full_tensor(), full - gradient / 2));
    EXPECT_NE(error_of([&] { step(beside); }), "nothing was thrown");
  });
}

// The gradient passed to backward() may be plain.
TEST(ImplicitReplication, TheGradientOfTheResultMayBePlain) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto gradient = numbers({4, 3}, 2);
    const auto x = distribute_tensor(numbers({4, 3}, 1), mesh, {Shard(0)});
    x.requires_grad_();
    const auto scope = implicit_replication();
    (x * 2).backward(gradient);
    EXPECT_TRUE(same(DTensor(x.grad()).full_tensor(), gradient * 2));
    const auto y = leaf(place(numbers({4, 3}, 1), mesh, {Shard(0)}));
    DTensor(y).redistribute({Replicate()}).backward(gradient);
    EXPECT_TRUE(same(DTensor(y.grad()).full_tensor(), gradient));
  });
}

// A style decides the layout of a module's plain input, here a shard.
TEST(ImplicitReplication, LeavesTheInputOfStyledModulesToTheirStyles) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    for (const auto& batch : std::vector<std::vector<int64_t>>{{3}, {2, 3}}) {
      torch::manual_seed(1);
      torch::nn::Sequential net(torch::nn::Linear(4, 2));
      net->to(at::kDouble);
      auto sizes = batch;
      sizes.push_back(4);
      const auto x = numbers(sizes, 1);
      const auto truth = net->forward(x).detach();
      parallelize_module(*net, mesh, {{"0", RowwiseParallel()}});
      const auto part =
          x.narrow(-1, 2 * mesh.get_local_rank(0), 2).contiguous();
      const auto scope = implicit_replication();
      const auto y = net->forward(part);
      EXPECT_FALSE(is_dtensor(y));
      EXPECT_TRUE(at::allclose(y, truth));
    }
  });
}

TEST(ImplicitReplication, OnRanksOutsideTheMesh) {
  run_ranks(3, [](int64_t rank) {
    const auto mesh = make_device_mesh(at::kCPU, {2}, {0, 2}, {"tp"});
    const auto x =
        leaf(distribute_tensor(numbers({5, 4}, 1), mesh, {Shard(0)}));
    const auto row = leaf(numbers({4}, 2));
    const auto scope = implicit_replication();
    const auto y = x * row;
    EXPECT_EQ(y.sizes(), x.sizes());
    y.sum().backward();
    if (rank != 1) {
      EXPECT_TRUE(same(row.grad(), numbers({5, 4}, 1).sum(0)));
    }
  });
}

// DTensors of two meshes are an error in the scope, too: plain tensors are
// placed on the mesh of the first DTensor.
TEST(ImplicitReplication, DTensorsOfTwoMeshesStayAnError) {
  run_ranks(2, [] {
    const auto a = init_device_mesh(at::kCPU, {2}, {"a"});
    const auto b = init_device_mesh(at::kCPU, {2}, {"b"});
    const auto scope = implicit_replication();
    const at::Tensor x = place(numbers({4}, 1), a, {Shard(0)});
    const at::Tensor y = place(numbers({4}, 1), b, {Shard(0)});
    EXPECT_NE(
        error_of([&] {
          at::addcmul(x, numbers({4}, 2), y);
        }).find("the operands live on different meshes"),
        std::string::npos);
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
