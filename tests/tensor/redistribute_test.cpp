// SPDX-License-Identifier: BSD-3-Clause
// to_local, full_tensor and redistribute: values, gradients and collectives.
// The tests of plans cover every pair of layouts.
#include <dtensor/debug/comm_debug_mode.h>

#include "support.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

Placements without_partial(Placements layout) {
  for (auto& p : layout) {
    p = p.is_partial() ? Replicate() : p;
  }
  return layout;
}

// Returns every layout on one mesh dimension, and a selection on two.
std::vector<Placements> layouts_of(int64_t mesh_ndim) {
  std::vector<Placements> layouts;
  for (size_t i = 0; i < kKinds.size(); ++i) {
    if (mesh_ndim == 1) {
      layouts.push_back({kKinds[i]});
    } else {
      layouts.push_back({kKinds[i], kKinds[(i + 1) % kKinds.size()]});
      layouts.push_back({kKinds[i], kKinds[i]});
    }
  }
  return layouts;
}

TEST(ToLocal, SharesTheMemoryOfTheStoredTensor) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    const auto local = at::ones({3});
    auto d = DTensor::from_local(local, mesh, {Shard(0)});
    EXPECT_EQ(to_local(d).data_ptr(), local.data_ptr());
    d.requires_grad_();
    {
      const at::NoGradGuard no_grad;
      EXPECT_EQ(to_local(d).data_ptr(), local.data_ptr());
    }
    const auto out = to_local(d);
    EXPECT_TRUE(out.requires_grad());
    EXPECT_EQ(out.data_ptr(), local.data_ptr());
  });
}

TEST(ToLocalBackward, TakesTheGradientToBeInGradPlacements) {
  struct Case {
    Placement layout;
    std::optional<Placements> given;
    const char* grad;
  };
  const std::vector<Case> cases = {
      {Shard(0), std::nullopt, "f64[4] on (a=2): S(0)"},
      {Replicate(), std::nullopt, "f64[4] on (a=2): R"},
      {Partial(), std::nullopt, "f64[4] on (a=2): R"},
      {Replicate(), Placements{Partial()}, "f64[4] on (a=2): P(sum)"},
      {Shard(0), Placements{Shard(-1)}, "f64[4] on (a=2): S(0)"}};
  run_ranks(2, [&] {
    const auto mesh = mesh_of({2});
    for (const auto& c : cases) {
      auto d = placed(counting({4}), mesh, {c.layout}, true);
      const auto out = to_local(d, c.given);
      Counter counter;
      out.backward(at::full_like(out, 3));
      EXPECT_EQ(counter.take(), "");
      EXPECT_EQ(to_string(*DTensor(d.grad()).spec()), c.grad);
      expect_same(DTensor(d.grad()).to_local(), at::full_like(out.detach(), 3));
    }
  });
}

TEST(ToLocalBackward, StridesMatchTheTensor) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    auto d = placed(counting({4, 6}), mesh, {Shard(0)}, true);
    const auto out = to_local(d);
    const auto grad = torch::autograd::grad(
        {out}, {d}, {at::ones({6, 2}, at::kDouble).t()})[0];
    EXPECT_EQ(grad.strides(), at::IntArrayRef({6, 1}));
    expect_same(whole(grad), at::ones({4, 6}, at::kDouble));
  });
}

TEST(ToLocalBackward, IsTwiceDifferentiable) {
  on_meshes({{2}, {3}}, [](const DeviceMesh& mesh) {
    const auto full = counting({5, 3});
    for (const auto& p :
         {Replicate(), Shard(0), Shard(1), StridedShard(0, 2)}) {
      auto d = placed(full, mesh, {p}, true);
      const auto first = torch::autograd::grad(
          {to_local(d).pow(3).sum()}, {d}, {}, true, true);
      expect_same(whole(first[0]), 3 * full.pow(2));
      const auto second =
          torch::autograd::grad({DTensor(first[0]).to_local().sum()}, {d});
      expect_same(whole(second[0]), 6 * full);
    }
  });
}

TEST(FullTensor, IsTheFullTensorOnEveryRank) {
  for (const std::vector<int64_t>& sizes :
       {std::vector<int64_t>{5, 3}, {1, 1}, {0, 2}}) {
    on_meshes({{1}, {2}, {3}, {2, 2}, {2, 3}}, [&](const DeviceMesh& mesh) {
      const auto full = counting(sizes);
      for (const auto& layout : layouts_of(mesh.ndim())) {
        expect_same(whole(placed(full, mesh, layout)), full);
      }
    });
  }
  on_meshes({{2}, {2, 2}}, [&](const DeviceMesh& mesh) {
    const auto number = at::scalar_tensor(7.0, at::kDouble);
    const Placements layout(static_cast<size_t>(mesh.ndim()), Partial());
    expect_same(whole(placed(number, mesh, layout)), number);
  });
}

TEST(FullTensorBackward, ExpectsAReplicatedGradientByDefault) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = mesh_of({2});
    auto d = placed(counting({4}), mesh, {Shard(0)}, true);
    Counter counter;
    full_tensor(d).sum().backward();
    EXPECT_EQ(counter.take(), "1 all_gather");
    EXPECT_EQ(to_string(*DTensor(d.grad()).spec()), "f64[4] on (a=2): S(0)");
    expect_same(whole(d.grad()), at::ones({4}, at::kDouble));

    d.mutable_grad().reset();
    counter.take();
    const auto mine = static_cast<double>(rank + 1); // ranks use it differently
    (full_tensor(d, Placements{Partial()}) * mine).sum().backward();
    EXPECT_EQ(counter.take(), "1 all_gather, 1 reduce_scatter");
    expect_same(whole(d.grad()), at::full({4}, 3.0, at::kDouble));
  });
}

TEST(RedistributeBackward, GoesBackToTheSourceLayout) {
  on_meshes({{1}, {2}, {3}, {2, 2}}, [](const DeviceMesh& mesh) {
    const auto full = counting({5, 3});
    for (const auto& from : layouts_of(mesh.ndim())) {
      for (const auto& to : layouts_of(mesh.ndim())) {
        auto d = placed(full, mesh, from, true);
        std::optional<DTensor> moved;
        try {
          moved = redistribute(d, to);
        } catch (const c10::ValueError&) { // sum to avg throws
          continue;
        }
        EXPECT_EQ(
            to_string(moved->placements()),
            to_string(DTensor(d).spec()->with_placements(to)->placements()));
        const auto loss = whole(moved->pow(3).sum());
        const auto first =
            torch::autograd::grad({loss}, {d}, {}, true, /*create_graph=*/true);
        if (from != to) {
          EXPECT_EQ(
              to_string(DTensor(first[0]).placements()),
              to_string(DTensor(d)
                            .spec()
                            ->with_placements(without_partial(from))
                            ->placements()))
              << to_string(PlacementsRef(to));
        }
        expect_same(whole(first[0]), 3 * full.pow(2));
        const auto second = torch::autograd::grad({whole(first[0].sum())}, {d});
        expect_same(whole(second[0]), 6 * full);
      }
    }
  });
}

TEST(RedistributeBackward, OfAPartialTargetIsReplicated) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    auto d = placed(counting({4}), mesh, {Replicate()}, true);
    Counter counter;
    const auto partial = redistribute(d, {Partial()});
    to_local(partial).sum().backward();
    EXPECT_EQ(counter.take(), "");
    EXPECT_EQ(to_string(*DTensor(d.grad()).spec()), "f64[4] on (a=2): R");
    expect_same(whole(d.grad()), at::ones({4}, at::kDouble));
  });
}

// Gathering a sequence-parallel input costs the collectives that Python counts.
TEST(RedistributeBackward, GatherThenPartialGradientIsOneReduceScatter) {
  run_ranks(4, [] {
    const auto mesh = mesh_of({4});
    auto d = placed(counting({8, 2}), mesh, {Shard(0)}, true);
    Counter counter;
    const auto local =
        to_local(redistribute(d, {Replicate()}), Placements{Partial()});
    EXPECT_EQ(counter.take(), "1 all_gather");
    local.sum().backward();
    EXPECT_EQ(counter.take(), "1 reduce_scatter");
    expect_same(whole(d.grad()), at::full({8, 2}, 4.0, at::kDouble));
  });
}

TEST(Redistribute, ToItsOwnLayoutIsItself) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    auto d = placed(counting({4}), mesh, {Shard(0)});
    EXPECT_TRUE(redistribute(d, {Shard(0)}).is_same(d));
    EXPECT_TRUE(DTensor(d).redistribute(mesh, {Shard(-1)}).is_same(d));
  });
}

// A redistribution to the same layout still records a node, so that the
// gradient is in the layout of the tensor.
TEST(RedistributeBackward, ToItsOwnLayoutBringsTheGradientThere) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    for (const bool async : {false, true}) {
      auto d = placed(counting({4}), mesh, {Replicate()}, true);
      const auto same = redistribute(d, {Replicate()}, {.async_op = async});
      EXPECT_TRUE(DTensor(same.detach())
                      .to_local()
                      .is_alias_of(DTensor(d.detach()).to_local()));
      to_local(same, Placements{Partial()}).sum().backward();
      EXPECT_EQ(spec_text(d.grad()), "f64[4] on (a=2): R");
      expect_same(whole(d.grad()), at::full({4}, 2.0, at::kDouble));
    }
    auto d = placed(counting({4}), mesh, {Replicate()}, true);
    full_tensor(d, Placements{Partial()}).sum().backward();
    EXPECT_EQ(spec_text(d.grad()), "f64[4] on (a=2): R");
  });
}

TEST(Redistribute, IsOutOfPlace) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    const auto d = placed(counting({4}), mesh, {Replicate()});
    auto shards = redistribute(d, {Shard(0)});
    shards.zero_();
    expect_same(whole(d), counting({4}));
  });
}

// Python has this change since 2.14.
TEST(Redistribute, PadsAShardToATermOfASum) {
  for (const int64_t ranks : {1, 2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = mesh_of({ranks});
      const auto full = counting({4, 5});
      const auto d = placed(full, mesh, {Shard(1)}).requires_grad_();
      const CommDebugMode comm;
      const auto padded = redistribute(d, {Partial()});
      EXPECT_EQ(comm.get_total_counts(), 0);
      EXPECT_EQ(to_local(padded).sizes(), full.sizes());
      expect_same(whole(padded), full);
      (padded * 3).sum().backward();
      expect_same(whole(d.grad()), at::full_like(full, 3));
      EXPECT_EQ(DTensor(d.grad()).placements()[0], Shard(1));
    });
  }
}

TEST(RedistributeDtypes, CastBeforeCommunicating) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    auto d = placed(counting({4}, at::kFloat), mesh, {Shard(0)}, true);
    Counter counter;
    const auto out =
        redistribute(d, {Replicate()}, {.forward_dtype = at::kBFloat16});
    EXPECT_EQ(counter.take_bytes(), 2 * 2); // 2 elements of 2 bytes
    EXPECT_EQ(to_string(*DTensor(out).spec()), "bf16[4] on (a=2): R");
    expect_same(to_local(out), counting({4}, at::kBFloat16));

    // The default communicates the gradient in the input's dtype.
    to_local(out, Placements{Partial()}).sum().backward();
    EXPECT_EQ(counter.take_bytes(), 4 * 4);
    EXPECT_EQ(to_string(*DTensor(d.grad()).spec()), "f32[4] on (a=2): S(0)");
    expect_same(whole(d.grad()), at::full({4}, 2.0f));

    const auto same_layout =
        redistribute(d, {Shard(0)}, {.forward_dtype = at::kDouble});
    EXPECT_EQ(to_string(*DTensor(same_layout).spec()), "f64[4] on (a=2): S(0)");
    EXPECT_TRUE(same_layout.requires_grad());
  });
}

TEST(RedistributeDtypes, CastTheGradientBeforeCommunicating) {
  run_ranks(2, [] {
    const auto mesh = mesh_of({2});
    auto d = placed(counting({4}, at::kBFloat16), mesh, {Shard(0)}, true);
    Counter counter;
    const auto out =
        redistribute(d, {Replicate()}, {.backward_dtype = at::kFloat});
    EXPECT_EQ(out.scalar_type(), at::kBFloat16);
    EXPECT_EQ(counter.take_bytes(), 2 * 2);
    to_local(out, Placements{Partial()}).sum().backward();
    EXPECT_EQ(counter.take_bytes(), 4 * 4);
    EXPECT_EQ(d.grad().scalar_type(), at::kBFloat16);

    // The gradient has the input's dtype, not forward_dtype.
    auto r = placed(counting({4}, at::kFloat), mesh, {Replicate()}, true);
    const auto narrow =
        redistribute(r, {Shard(0)}, {.forward_dtype = at::kBFloat16});
    EXPECT_EQ(narrow.scalar_type(), at::kBFloat16);
    to_local(narrow).sum().backward();
    EXPECT_EQ(r.grad().scalar_type(), at::kFloat);
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
