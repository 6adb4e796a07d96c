// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/random/random.h>

#include "oracle.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::testing;

const Placements kAll =
    {Replicate(), Shard(0), Shard(1), Shard(2), Partial(ReduceOp::kSum)};

at::Tensor attend(
    const Tensors& t,
    const std::optional<at::Tensor>& mask = std::nullopt,
    bool causal = false,
    std::optional<double> scale = std::nullopt,
    bool grouped = false) {
  return at::scaled_dot_product_attention(
      t[0], t[1], t[2], mask, 0, causal, scale, grouped);
}

TEST(AttentionTest, SameAsPlain) {
  for (const bool causal : {false, true}) {
    expect_same_as_plain(
        {causal ? "causal" : "attention",
         {variable({3, 5, 4, 2}, 1),
          variable({3, 5, 4, 2}, 2),
          variable({3, 5, 4, 2}, 3)},
         {kAll, kAll, kAll},
         [=](const Tensors& t) { return attend(t, {}, causal, 0.3); }});
  }
}

TEST(AttentionTest, Masks) {
  const std::vector<at::Tensor> masks = {
      uniform({4, 6}, 4).gt(0.4),
      uniform({3, 1, 4, 6}, 4).gt(0.3),
      uniform({1, 5, 4, 6}, 4),
      uniform({3, 5, 4, 6}, 4)};
  for (const auto& mask : masks) {
    expect_same_as_plain(
        {"mask " + std::to_string(mask.numel()),
         {variable({3, 5, 4, 2}, 1),
          variable({3, 5, 6, 2}, 2),
          variable({3, 5, 6, 3}, 3),
          mask},
         {kAll, kAll, kAll, {Replicate(), Shard(0), Shard(1)}},
         [=](const Tensors& t) { return attend(t, t[3]); }});
  }
}

TEST(AttentionTest, FeaturesOfValues) {
  const Placements kinds = {
      Replicate(), Shard(1), Shard(3), Partial(ReduceOp::kSum)};
  const auto mask = uniform({3, 1, 4, 6}, 4);
  for (const bool grouped : {false, true}) {
    expect_same_as_plain(
        {grouped ? "grouped" : "a head for each query",
         {variable({3, 4, 4, 2}, 1),
          variable({3, grouped ? 2 : 4, 6, 2}, 2),
          variable({3, grouped ? 2 : 4, 6, 3}, 3),
          mask},
         {kinds, kinds, kinds, {Replicate()}},
         [=](const Tensors& t) {
           return attend(t, t[3], false, {}, grouped);
         }});
  }
}

// Each rank weights the features that it holds.
TEST(AttentionTest, ShardedFeaturesNeedNoCommunication) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto q = in_layout(uniform({2, 4, 3, 6}, 1), mesh, {Replicate()});
    const auto v = in_layout(uniform({2, 4, 3, 6}, 2), mesh, {Shard(3)});
    Collectives collectives;
    const auto y = attend({q, q, v}, {}, true);
    EXPECT_EQ(DTensor(y).placements()[0], Shard(3));
    EXPECT_EQ(collectives.take(), "");
  });
}

TEST(AttentionTest, GroupedHeads) {
  for (const auto heads : {1, 2, 4}) {
    expect_same_as_plain(
        {"grouped heads " + std::to_string(heads),
         {variable({2, 4, 3, 2}, 1),
          variable({2, heads, 3, 2}, 2),
          variable({2, heads, 3, 2}, 3)},
         {kAll, kAll, kAll},
         [](const Tensors& t) { return attend(t, {}, true, {}, true); }});
  }
}

TEST(AttentionTest, GroupsThatDoNotDivide) {
  const Placements kinds = {
      Replicate(), Shard(0), Shard(1), Shard(1, 3), Partial(ReduceOp::kSum)};
  for (const auto heads : {1, 3, 9}) {
    expect_same_as_plain(
        {"9 heads, " + std::to_string(heads) + " of keys",
         {variable({2, 9, 3, 2}, 1),
          variable({2, heads, 3, 2}, 2),
          variable({2, heads, 3, 2}, 3)},
         {kinds, kinds, kinds},
         [](const Tensors& t) { return attend(t, {}, true, {}, true); }});
  }
  expect_same_as_plain(
      {"other heads of values, and a mask of each head",
       {variable({2, 12, 3, 2}, 1),
        variable({2, 6, 3, 2}, 2),
        variable({2, 4, 3, 2}, 3),
        uniform({1, 12, 3, 3}, 4)},
       {kinds, kinds, kinds, {Replicate(), Shard(1)}},
       [](const Tensors& t) { return attend(t, t[3], false, {}, true); }});
}

// Checks that no communication takes place for query and key heads in these
// layouts.
void expect_no_communication(
    int64_t ranks,
    int64_t queries,
    const Placement& query,
    int64_t keys,
    const Placement& key,
    const Placement& key_gradient) {
  run_ranks(ranks, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {ranks});
    Tensors t = {
        in_layout(uniform({2, queries, 3, 2}, 1), mesh, {query}),
        in_layout(uniform({2, keys, 3, 2}, 2), mesh, {key}),
        in_layout(uniform({2, keys, 3, 2}, 3), mesh, {key})};
    for (auto& each : t) {
      each.set_requires_grad(true);
    }
    Collectives collectives;
    const auto y = attend(t, {}, true, {}, true);
    EXPECT_EQ(DTensor(y).placements()[0], DTensor(t[0]).placements()[0]);
    y.backward(y.detach());
    EXPECT_EQ(collectives.take(), "");
    EXPECT_EQ(DTensor(t[1].grad()).placements()[0], key_gradient);
  });
}

TEST(AttentionTest, GroupsStayWithTheirKeys) {
  for (const int64_t ranks : {2, 3, 4}) {
    expect_no_communication(ranks, 9, Shard(1, 3), 3, Shard(1), Shard(1));
  }
}

// Each rank picks its query heads' keys from replicated keys. Gradients of the
// keys are terms of a sum over ranks.
TEST(AttentionTest, QueriesSelectFromUnshardedKeys) {
  expect_no_communication(4, 8, Shard(1), 2, Replicate(), Partial());
  expect_no_communication(2, 9, Shard(1), 3, Replicate(), Partial());
  expect_no_communication(2, 6, Shard(1, 5), 3, Replicate(), Partial());
}

TEST(AttentionTest, OtherShapes) {
  const Placements three = {Replicate(), Shard(0), Shard(1)};
  expect_same_as_plain(
      {"three dimensions",
       {variable({3, 4, 2}, 1), variable({3, 4, 2}, 2), variable({3, 4, 2}, 3)},
       {three, three, three},
       [](const Tensors& t) { return attend(t); }});
  expect_same_as_plain(
      {"keys for all batches",
       {variable({3, 2, 4, 2}, 1),
        variable({1, 2, 4, 2}, 2),
        variable({1, 2, 4, 2}, 3)},
       {kAll, kAll, kAll},
       [](const Tensors& t) { return attend(t); }});
}

TEST(AttentionTest, ShardedHeadsNeedNoCommunication) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    Tensors t;
    for (int i = 0; i < 3; ++i) {
      t.push_back(in_layout(
          uniform({2, 4, 3, 2}, static_cast<uint64_t>(i)), mesh, {Shard(1)}));
      t.back().set_requires_grad(true);
    }
    Collectives collectives;
    const auto y = attend(t, {}, true);
    EXPECT_TRUE(DTensor(y).placements()[0] == Shard(1));
    y.backward(y.detach());
    EXPECT_EQ(collectives.take(), "");
    EXPECT_TRUE(DTensor(t[0].grad()).placements()[0] == Shard(1));
  });
}

// The result has the memory order of the plain result, so merging heads after
// transpose(1, 2) copies in the same cases.
TEST(AttentionTest, LiesInMemoryAsThePlainResultDoes) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto heads_inside = uniform({2, 3, 4, 2}, 1).transpose(1, 2);
    for (const auto& full_q : {heads_inside, heads_inside.contiguous()}) {
      const auto plain = attend({full_q, full_q, full_q}, {}, true);
      for (const auto& p : {Placement(Shard(0)), Placement(Shard(1))}) {
        // A sharded projection returns the same order in memory.
        const auto q = full_q.is_contiguous()
            ? in_layout(full_q, mesh, {p})
            : in_layout(
                  full_q.transpose(1, 2), mesh, {p.dim() == 1 ? Shard(2) : p})
                  .transpose(1, 2);
        const auto y = attend({q, q, q}, {}, true);
        EXPECT_EQ(y.strides(), plain.strides());
        EXPECT_EQ(
            DTensor(y).to_local().transpose(1, 2).is_contiguous(),
            plain.transpose(1, 2).is_contiguous());
      }
    }
  });
}

// Gradients have the memory order of plain gradients: the kernel returns them
// with the heads inside, and a leaf stores them in its own order.
TEST(AttentionTest, GradientsLieInMemoryAsThePlainOnesDo) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    for (const auto& p : {Placement(Shard(0)), Placement(Shard(1))}) {
      auto plain = uniform({2, 4, 3, 2}, 1).requires_grad_();
      auto q = in_layout(plain.detach(), mesh, {p}).requires_grad_();
      const auto truth = attend({plain, plain, plain}, {}, true);
      const auto y = attend({q, q, q}, {}, true);
      const auto one = uniform({2, 4, 3, 2}, 2);
      const auto expected =
          torch::autograd::grad({truth}, {plain}, {one}, true)[0];
      const auto grad =
          torch::autograd::grad({y}, {q}, {in_layout(one, mesh, {p})}, true)[0];
      EXPECT_EQ(grad.strides(), expected.strides());
      EXPECT_TRUE(DTensor(grad).to_local().transpose(1, 2).is_contiguous());
      EXPECT_TRUE(close(full(grad), expected));
      truth.backward(one);
      y.backward(in_layout(one, mesh, {p}));
      EXPECT_EQ(q.grad().strides(), plain.grad().strides());
      EXPECT_TRUE(DTensor(q.grad()).to_local().is_contiguous());
      EXPECT_TRUE(close(full(q.grad()), plain.grad()));
    }
  });
}

// Mesh dimensions choose one after the other. The second takes into account
// that the first has sharded the heads, which are too few for both.
TEST(AttentionTest, MeshDimensionsDoNotBothCutFewHeads) {
  const Tensors plain{
      uniform({1, 4, 3, 2}, 1),
      uniform({1, 2, 3, 2}, 2),
      uniform({1, 2, 3, 2}, 3)};
  const auto truth = attend(plain, {}, false, {}, true);
  run_ranks(4, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2});
    for (const auto& first : {Replicate(), Partial(), Shard(1)}) {
      for (const auto& second : {Replicate(), Partial(), Shard(1)}) {
        Tensors t;
        for (const auto& full : plain) {
          t.push_back(in_layout(full, mesh, {first, second}));
        }
        EXPECT_TRUE(close(full(attend(t, {}, false, {}, true)), truth))
            << first << second;
      }
    }
  });
}

// Dropped weights have no layout of their own beside sharded features.
TEST(AttentionTest, DropoutReplicatesFeatures) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    at::Tensor values[2];
    for (const int64_t dim : {0, 3}) {
      const auto q = in_layout(uniform({2, 2, 4, 4}, 1), mesh, {Replicate()});
      const auto v = in_layout(uniform({2, 2, 4, 4}, 2), mesh, {Shard(dim)});
      manual_seed(6);
      values[dim == 0 ? 0 : 1] =
          full(at::scaled_dot_product_attention(q, q, v, {}, 0.5));
    }
    EXPECT_TRUE(close(values[0], values[1]));
  });
}

TEST(AttentionTest, DropsTheSameWeightsInEveryLayout) {
  at::Tensor value;
  at::Tensor grad;
  Failures failures;
  for (const auto ranks : {1, 2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks});
      for (const auto& layout : kAll) {
        Tensors t;
        for (uint64_t i = 0; i < 3; ++i) {
          t.push_back(
              in_layout(uniform({3, i == 0 ? 6 : 3, 4, 2}, i), mesh, {layout}));
          t.back().set_requires_grad(true);
        }
        manual_seed(6);
        const auto y = at::scaled_dot_product_attention(
            t[0], t[1], t[2], {}, 0.5, true, {}, true);
        y.backward(in_layout(uniform({3, 6, 4, 2}, 9), mesh, {Replicate()}));
        if (!value.defined()) {
          value = full(y.detach());
          grad = full(t[0].grad());
        }
        if (!close(full(y.detach()), value) ||
            !close(full(t[0].grad()), grad)) {
          failures.add(to_string(layout) + " on " + std::to_string(ranks));
        }
        const torch::NoGradGuard no_grad;
        for (int call = 0; call < 3; ++call) { // later calls are unboxed
          manual_seed(6);
          const auto again = at::scaled_dot_product_attention(
              t[0], t[1], t[2], {}, 0.5, true, {}, true);
          if (!close(full(again), value)) {
            failures.add(to_string(layout) + " without a graph");
          }
        }
      }
    });
  }
  EXPECT_EQ(failures.text(), "");
  const auto t = Tensors{
      uniform({3, 6, 4, 2}, 0),
      uniform({3, 3, 4, 2}, 1),
      uniform({3, 3, 4, 2}, 2)};
  EXPECT_FALSE(close(value, attend(t, {}, true, {}, true)));
}

} // namespace TEST_SOURCE
} // namespace dtensor
