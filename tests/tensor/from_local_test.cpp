// SPDX-License-Identifier: BSD-3-Clause
#include "support.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

TEST(FromLocal, WrapsTheLocalTensorWithoutCommunication) {
  run_ranks(2, [](int64_t rank) {
    Counter counter;
    const auto mesh = mesh_of({2});
    const auto local = at::full({3, 2}, static_cast<double>(rank), at::kDouble);
    const auto d = DTensor::from_local(local, mesh, {Shard(0)});
    EXPECT_EQ(to_string(*DTensor(d).spec()), "f64[6, 2] on (a=2): S(0)");
    EXPECT_TRUE(DTensor(d).device_mesh() == mesh);
    EXPECT_EQ(d.sizes(), at::IntArrayRef({6, 2}));
    EXPECT_TRUE(d.is_leaf());
    EXPECT_FALSE(d.requires_grad());
    EXPECT_EQ(to_local(d).data_ptr(), local.data_ptr());
    EXPECT_EQ(counter.take(), "");
  });
}

TEST(FromLocal, InfersSizesAndStridesFromThePlacements) {
  run_ranks(6, [] {
    const auto mesh = mesh_of({2, 3});
    const auto text = [&](const at::Tensor& local, const Placements& layout) {
      return to_string(
          *DTensor(DTensor::from_local(local, mesh, layout)).spec());
    };
    EXPECT_EQ(
        text(at::zeros({4, 5}), {Shard(0), Shard(1)}),
        "f32[8, 15] on (a=2, b=3): S(0) S(1)");
    EXPECT_EQ(
        text(at::zeros({4, 5}), {Shard(-1), Shard(1)}),
        "f32[4, 30] on (a=2, b=3): S(1) S(1)");
    EXPECT_EQ(
        text(at::zeros({5, 4}).t(), {Replicate(), Shard(0)}),
        "f32[12, 5; 1, 12] on (a=2, b=3): R S(0)");
    EXPECT_EQ(
        text(at::zeros({}), {Partial(), Replicate()}),
        "f32[] on (a=2, b=3): P(sum) R");
    EXPECT_EQ(
        text(at::zeros({0, 3}), {Shard(0), Replicate()}),
        "f32[0, 3] on (a=2, b=3): S(0) R");
  });
}

TEST(FromLocal, UnevenAndEmptyShardsWithAShape) {
  for (const std::vector<int64_t>& sizes :
       {std::vector<int64_t>{5, 3}, {1, 3}, {2, 1}, {0, 2}, {7, 4}}) {
    on_meshes({{1}, {2}, {3}, {2, 2}, {2, 3}}, [&](const DeviceMesh& mesh) {
      const auto full = counting(sizes);
      const auto ndim = static_cast<size_t>(mesh.ndim());
      for (const auto& layout :
           {Placements(ndim, Shard(0)),
            Placements(ndim, StridedShard(0, 2)),
            Placements(ndim, Partial())}) {
        expect_same(whole(placed(full, mesh, layout)), full);
      }
      if (ndim == 2) {
        expect_same(whole(placed(full, mesh, {Shard(1), Shard(0)})), full);
        expect_same(whole(placed(full, mesh, {Partial(), Shard(1)})), full);
        expect_same(
            whole(placed(full, mesh, {StridedShard(0, 2), Shard(0)})), full);
      }
    });
  }
}

// Operators give an empty tensor the strides of their operands, which may
// differ between ranks.
TEST(FromLocal, AnEmptyTensorHasTheSameStridesOnAllRanks) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = mesh_of({2});
    const auto local = rank == 0
        ? at::ones({0, 1, 6})
        : at::ones({0, 1, 6}).as_strided({0, 1, 6}, {6, 1, 1});
    const auto x = DTensor::from_local(local, mesh, {Partial()});
    EXPECT_EQ(to_string(*DTensor(x).spec()), "f32[0, 1, 6] on (a=2): P(sum)");
  });
}

TEST(FromLocal, KeepsNonContiguousLocalTensors) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    const auto full = counting({4, 6});
    const auto turned = full.t().contiguous();
    const auto part = part_of(turned, mesh, {Shard(0)}).t(); // (4, 3)
    ASSERT_FALSE(part.is_contiguous());
    const auto d = DTensor::from_local(part, mesh, {Shard(1)});
    EXPECT_EQ(to_local(d).strides(), part.strides());
    EXPECT_EQ(d.strides(), at::IntArrayRef({1, 4}));
    expect_same(full_tensor(d), full);
    expect_same(whole(d * 2), full * 2);
  });
}

TEST(FromLocal, SecondOptionsOfShapeAndStride) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = mesh_of({2});
    const auto local = at::zeros({2, rank == 0 ? 3 : 2}).t();
    const auto d = DTensor::from_local(
        local,
        mesh,
        {Shard(0)},
        {.shape = std::vector<int64_t>{5, 2},
         .stride = std::vector<int64_t>{1, 5}});
    EXPECT_EQ(to_string(*DTensor(d).spec()), "f32[5, 2; 1, 5] on (a=2): S(0)");
  });
}

// The gradient arrives at the local tensor in the forward layout. The
// collectives are those of Python for a gradient in layout `arriving`.
TEST(FromLocalBackward, BringsTheGradientToTheForwardLayout) {
  struct Case {
    Placement forward;
    Placement arriving;
    const char* collectives;
    double grad; // at the local tensor; each rank contributes ones
  };
  const std::vector<Case> cases = {
      {Shard(0), Shard(0), "", 1},
      {Replicate(), Replicate(), "", 1},
      {Partial(), Replicate(), "", 1},
      {Replicate(), Partial(), "1 all_reduce", 2},
      {Partial(), Partial(), "1 all_reduce", 2}};
  run_ranks(2, [&] {
    const auto mesh = mesh_of({2});
    for (const auto& c : cases) {
      auto local = at::ones({4}, at::kDouble).requires_grad_();
      const auto d = DTensor::from_local(local, mesh, {c.forward});
      EXPECT_TRUE(d.requires_grad());
      EXPECT_FALSE(d.is_leaf());
      const auto out = to_local(d, Placements{c.arriving});
      Counter counter;
      out.sum().backward();
      EXPECT_EQ(counter.take(), c.collectives);
      expect_same(local.grad(), at::full({4}, c.grad, at::kDouble));
    }
  });
}

TEST(FromLocalBackward, GradPlacementsOverrideIt) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = mesh_of({2});
    auto local = at::ones({2, 3}, at::kDouble).requires_grad_();
    const auto d = DTensor::from_local(
        local, mesh, {Replicate()}, {.grad_placements = Placements{Partial()}});
    to_local(d).sum().backward();
    // A partial gradient: ones on rank 0 and zeros on the others.
    expect_same(
        local.grad(), at::full({2, 3}, rank == 0 ? 1.0 : 0.0, at::kDouble));
  });
}

TEST(FromLocalBackward, GradPlacementsHaveToFit) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    const std::string why =
        ": a rank's gradient has the shape of its local tensor, and these "
        "placements give it another shape. Shard the same dimensions as the "
        "tensor's layout.";
    const auto local = at::ones({2, 3}, at::kDouble).requires_grad_();
    EXPECT_EQ(
        error_of<c10::ValueError>([&] {
          DTensor::from_local(
              local,
              mesh,
              {Shard(0)},
              {.grad_placements = Placements{Replicate()}});
        }),
        "[from_local] grad_placements R do not fit f64[4, 3] on (a=2): S(0)" +
            why);
    const auto d = DTensor::from_local(local, mesh, {Replicate()});
    EXPECT_EQ(
        error_of<c10::ValueError>([&] { to_local(d, Placements{Shard(1)}); }),
        "[to_local] grad_placements S(1) do not fit f64[2, 3] on (a=2): R" +
            why);
  });
}

TEST(FromLocalBackward, IsTwiceDifferentiable) {
  const std::vector<int64_t> sizes = {5, 3};
  on_meshes({{1}, {2}, {3}, {2, 2}}, [&](const DeviceMesh& mesh) {
    const auto full = counting(sizes);
    const auto ndim = static_cast<size_t>(mesh.ndim());
    for (const auto& p :
         {Replicate(), Shard(0), Shard(1), StridedShard(0, 2)}) {
      const Placements layout(ndim, p);
      auto local = part_of(full, mesh, layout).requires_grad_();
      const auto d = DTensor::from_local(
          local, mesh, layout, {.shape = full.sizes().vec()});
      const auto loss = whole(d.pow(3).sum());
      const auto first = torch::autograd::grad(
          {loss}, {local}, {}, true, /*create_graph=*/true);
      expect_same(first[0], 3 * local.pow(2));
      const auto again = DTensor::from_local(
          first[0], mesh, layout, {.shape = full.sizes().vec()});
      const auto second = torch::autograd::grad({whole(again.sum())}, {local});
      expect_same(second[0], 6 * local);
    }
  });
}

TEST(FromLocal, LeavesAndWhatRequiresGradients) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    auto leaf = at::ones({2}).requires_grad_();
    EXPECT_FALSE(DTensor::from_local(leaf, mesh, {Shard(0)}).is_leaf());
    {
      const at::NoGradGuard no_grad;
      const auto d = DTensor::from_local(leaf, mesh, {Shard(0)});
      EXPECT_FALSE(d.requires_grad());
      EXPECT_TRUE(d.is_leaf());
    }
    auto d = DTensor::from_local(leaf.detach(), mesh, {Shard(0)});
    d.requires_grad_();
    EXPECT_TRUE(d.is_leaf());
    EXPECT_FALSE(DTensor(d).spec()->is_replicated());
    whole(d.sum()).backward();
    EXPECT_TRUE(is_dtensor(d.grad()));
    EXPECT_FALSE(leaf.grad().defined());
  });
}

TEST(FromLocalRunCheck, GivesReplicasTheDataOfTheFirstRank) {
  run_ranks(4, [](int64_t rank) {
    const auto mesh = mesh_of({2, 2});
    const auto d = DTensor::from_local(
        at::full({2}, static_cast<double>(rank), at::kDouble),
        mesh,
        {Replicate(), Shard(0)},
        {.run_check = true});
    const auto row = static_cast<double>(rank % 2);
    expect_same(to_local(d), at::full({2}, row, at::kDouble));
  });
}

// Each rank's local tensor receives the gradient, as in Python.
TEST(FromLocalRunCheck, GradientsReachTheLocalTensors) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = mesh_of({2});
    for (const auto& layout : {Placement(Replicate()), Placement(Shard(0))}) {
      const auto leaf = at::full({2}, rank + 1, at::kDouble).requires_grad_();
      const auto d =
          DTensor::from_local(leaf, mesh, {layout}, {.run_check = true});
      EXPECT_TRUE(d.requires_grad());
      whole((d * d).sum()).backward();
      expect_same(leaf.grad(), 2 * to_local(d.detach()));
    }
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
