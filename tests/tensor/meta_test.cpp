// SPDX-License-Identifier: BSD-3-Clause
// DTensors with local tensors on the meta device keep their layout, so a model
// can be described without data.
#include "tests/tensor/support.h"

#include <dtensor/parallel/distribute_module.h>
#include <dtensor/parallel/loss_parallel.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test;

at::Tensor meta(at::IntArrayRef sizes) {
  return at::empty(sizes, at::TensorOptions(at::kMeta).dtype(at::kDouble));
}

// Compares layouts with those of the same operator on tensors with data.
template <class Fn>
void expect_as_with_data(const char* what, const DeviceMesh& mesh, Fn fn) {
  const auto sizes = std::vector<int64_t>{8, 4};
  for (const auto& p :
       {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1))}) {
    const at::Tensor real = distribute_tensor(counting(sizes), mesh, {p});
    const at::Tensor virt = distribute_tensor(meta(sizes), mesh, {p});
    const auto expected = fn(real);
    const auto got = fn(virt);
    ASSERT_TRUE(is_dtensor(got)) << what;
    EXPECT_EQ(spec_text(got), spec_text(expected)) << what;
    EXPECT_TRUE(got.is_meta()) << what;
    EXPECT_TRUE(DTensor(got).to_local().is_meta()) << what;
    EXPECT_EQ(
        DTensor(got).to_local().sizes(), DTensor(expected).to_local().sizes());
  }
}

TEST(Meta, OperatorsKeepTheLayout) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    const auto check = [&](const char* what, auto fn) {
      expect_as_with_data(what, mesh, fn);
    };
    check("add", [](const at::Tensor& t) { return t + 1; });
    check("empty_like", [](const at::Tensor& t) { return at::empty_like(t); });
    check("zeros_like", [](const at::Tensor& t) { return at::zeros_like(t); });
    check("rand_like", [](const at::Tensor& t) { return at::rand_like(t); });
    check("clone", [](const at::Tensor& t) { return t.clone(); });
    check("softmax", [](const at::Tensor& t) { return t.softmax(1); });
    check("sum", [](const at::Tensor& t) { return t.sum(); });
    check("sum dim", [](const at::Tensor& t) { return t.sum(0); });
    check("t", [](const at::Tensor& t) { return t.t(); });
    check("view", [](const at::Tensor& t) { return t.view({8, 2, 2}); });
    check("mm", [](const at::Tensor& t) { return t.mm(t.t()); });
    check("relu", [](const at::Tensor& t) { return t.relu(); });
    check("matmul", [](const at::Tensor& t) { return at::matmul(t, t.t()); });
    check("relu_", [](const at::Tensor& t) { return t.clone().relu_(); });
    check("normal_", [](const at::Tensor& t) { return t.clone().normal_(); });
    check("split", [](const at::Tensor& t) { return t.split(2)[1]; });
    check("norm", [](const at::Tensor& t) { return t.norm(); });
    check("max", [](const at::Tensor& t) { return std::get<0>(t.max(0)); });
    check("sort", [](const at::Tensor& t) { return std::get<0>(t.sort(0)); });
    check("median", [](const at::Tensor& t) { return t.median(); });
    check("median dim", [](const at::Tensor& t) {
      return std::get<0>(t.median(0));
    });
    check(
        "cummax", [](const at::Tensor& t) { return std::get<1>(t.cummax(0)); });
    check("var", [](const at::Tensor& t) { return t.var(0); });
    check("safe softmax", [](const at::Tensor& t) {
      return at::_safe_softmax(t, 0);
    });
    check("logsumexp", [](const at::Tensor& t) { return t.logsumexp(0); });
    check("multinomial", [](const at::Tensor& t) {
      return at::multinomial(t, 3, /*replacement=*/true);
    });
    check("dropout", [](const at::Tensor& t) {
      return at::dropout(t, 0.5, true);
    });
    check("to dtype", [](const at::Tensor& t) { return t.to(at::kFloat); });
  });
}

TEST(Meta, RedistributionMovesNothing) {
  on_meshes({{2}, {3}, {2, 2}}, [](const DeviceMesh& mesh) {
    const auto n = static_cast<size_t>(mesh.ndim());
    const Placements rows(n, Shard(0));
    const DTensor d = distribute_tensor(meta({8, 4}), mesh, rows);
    Counter counter;
    for (const auto& to :
         {Placements(n, Replicate()), Placements(n, Shard(1))}) {
      for (const bool async : {false, true}) {
        const auto moved = d.redistribute(to, {.async_op = async});
        EXPECT_EQ(DTensor(moved).placements(), PlacementsRef(to));
        EXPECT_EQ(
            to_local(moved).sizes(),
            at::IntArrayRef(DTensor(moved).spec()->local_sizes()));
        EXPECT_TRUE(to_local(moved).is_meta());
      }
    }
    EXPECT_EQ(d.full_tensor().sizes(), at::IntArrayRef({8, 4}));
    EXPECT_EQ(counter.take(), "");
  });
}

TEST(Meta, ATensorGoesThereAndComesBackInItsLayout) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    const at::Tensor d = distribute_tensor(counting({8, 4}), mesh, {Shard(0)});
    const auto there = d.to(at::kMeta);
    ASSERT_TRUE(is_dtensor(there));
    EXPECT_TRUE(there.is_meta());
    EXPECT_EQ(spec_text(there), spec_text(d));
    const auto back =
        at::empty_like(there, at::TensorOptions().device(at::kCPU));
    ASSERT_TRUE(is_dtensor(back));
    EXPECT_EQ(spec_text(back), spec_text(d));
    expect_same(whole(back.copy_(d)), counting({8, 4}));
  });
}

TEST(Meta, AMeshOfMetaDevicesTakesNoData) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kMeta, {2}, {"a"});
    const auto d = distribute_tensor(counting({8, 4}), mesh, {Shard(0)});
    EXPECT_TRUE(d.is_meta());
    EXPECT_EQ(spec_text(d), "f64[8, 4] on (a=2): S(0)");
    EXPECT_EQ(to_local(d).sizes(), at::IntArrayRef({4, 4}));
  });
}

TEST(Meta, FromLocalKeepsTheDevice) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    const auto d = DTensor::from_local(
        meta({4, 4}), mesh, {Shard(0)}, {.run_check = true});
    EXPECT_EQ(d.sizes(), at::IntArrayRef({8, 4}));
    EXPECT_TRUE(d.is_meta());
    EXPECT_TRUE((d * 2).is_meta());
  });
}

TEST(Meta, GradientsHaveTheLayout) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    at::Tensor x = distribute_tensor(meta({8, 4}), mesh, {Shard(0)});
    x.set_requires_grad(true);
    at::Tensor w = distribute_tensor(meta({4, 6}), mesh, {Shard(1)});
    w.set_requires_grad(true);
    at::matmul(x, w).relu().sum().backward();
    ASSERT_TRUE(is_dtensor(x.grad()));
    EXPECT_TRUE(x.grad().is_meta());
    EXPECT_EQ(w.grad().sizes(), w.sizes());
  });
}

TEST(Meta, SecondDerivativesOfALossHaveTheLayout) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    const auto target = distribute_tensor(
        at::empty({8}, at::TensorOptions(at::kMeta).dtype(at::kLong)),
        mesh,
        {Replicate()});
    for (const auto reduction : {at::Reduction::None, at::Reduction::Mean}) {
      at::Tensor x = distribute_tensor(meta({8, 4}), mesh, {Shard(1)});
      x.set_requires_grad(true);
      const LossParallel scope;
      const auto loss = at::cross_entropy_loss(x, target, {}, reduction);
      const auto first =
          torch::autograd::grad({loss.sum()}, {x}, {}, true, true)[0];
      const auto second = torch::autograd::grad({first.pow(2).sum()}, {x})[0];
      EXPECT_TRUE(second.is_meta());
      EXPECT_EQ(spec_text(second), spec_text(x));
    }
  });
}

TEST(Meta, AParameterIsDistributedAndComesToLife) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    at::Tensor weight = meta({6, 4}).requires_grad_();
    const auto* const same = weight.unsafeGetTensorImpl();
    distribute_parameter(weight, mesh, {Shard(0)});
    ASSERT_TRUE(is_dtensor(weight));
    EXPECT_EQ(weight.unsafeGetTensorImpl(), same);
    EXPECT_TRUE(weight.is_meta());
    EXPECT_TRUE(weight.requires_grad());
    const auto x = distribute_tensor(meta({8, 4}), mesh, {Replicate()});
    const auto y = at::linear(x, weight);
    EXPECT_EQ(spec_text(y), "f64[8, 6] on (a=2): S(1)");
    y.sum().backward();
    EXPECT_EQ(spec_text(weight.grad()), spec_text(weight));
    weight.mutable_grad() = at::Tensor();
    const torch::NoGradGuard no_grad;
    weight.set_data(
        at::zeros_like(weight, at::TensorOptions().device(at::kCPU)));
    EXPECT_EQ(spec_text(weight), "f64[6, 4] on (a=2): S(0)");
    expect_same(whole(weight), at::zeros({6, 4}, at::kDouble));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
