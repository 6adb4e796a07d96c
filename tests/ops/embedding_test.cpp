// SPDX-License-Identifier: BSD-3-Clause
#include "oracle.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::testing;

at::Tensor indices() {
  return at::tensor({0, 4, 2, 2, 6, 1, 0, 5, 3, 2, 6, 6}, at::kLong)
      .view({3, 4});
}

const Placements kMatrix = {Replicate(), Shard(0), Shard(1)};

TEST(EmbeddingTest, SameAsPlain) {
  for (const bool by_frequency : {false, true}) {
    for (const int64_t padding : {-1, 2, 6}) {
      expect_same_as_plain(
          {"embedding padding " + std::to_string(padding) +
               (by_frequency ? " by frequency" : ""),
           {variable({7, 5}, 1), indices()},
           {kMatrix, kMatrix},
           [=](const Tensors& t) {
             return at::embedding(t[0], t[1], padding, by_frequency);
           }});
    }
  }
}

TEST(EmbeddingTest, FewRowsAndNoTokens) {
  const auto few = at::tensor({0, 1, 1}, at::kLong);
  expect_same_as_plain(
      {"a table of two rows",
       {variable({2, 1}, 1), few},
       {kMatrix, {Replicate(), Shard(0)}},
       [](const Tensors& t) { return at::embedding(t[0], t[1]); }});
  expect_same_as_plain(
      {"one token",
       {variable({4, 3}, 1), at::scalar_tensor(2, at::kLong)},
       {kMatrix, {Replicate()}},
       [](const Tensors& t) { return at::embedding(t[0], t[1]); }});
  expect_same_as_plain(
      {"no tokens",
       {variable({4, 3}, 1), at::empty({0}, at::kLong)},
       {kMatrix, {Replicate()}},
       [](const Tensors& t) { return at::embedding(t[0], t[1]); }});
}

TEST(EmbeddingTest, DenseBackward) {
  expect_same_as_plain(
      {"embedding_dense_backward",
       {uniform({3, 4, 5}, 1), indices()},
       {{Replicate(), Shard(0), Shard(1), Shard(2), Partial(ReduceOp::kSum)},
        kMatrix},
       [](const Tensors& t) {
         return at::embedding_dense_backward(t[0], t[1], 7, 2, false);
       }});
}

// An optimizer step between forward and backward pass may write the table. Rank
// 2 looks up no row.
TEST(EmbeddingTest, TheTableMayBeWrittenBeforeBackward) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    const auto ids = at::tensor({0, 1, 1}, at::kLong);
    const auto gradient = [&](at::Tensor table, const at::Tensor& found_of) {
      const auto found = at::embedding(table.requires_grad_(), found_of);
      {
        const at::NoGradGuard no_grad;
        table.add_(1);
      }
      return torch::autograd::grad({found.square().sum()}, {table})[0];
    };
    EXPECT_TRUE(at::equal(
        full(gradient(
            place(uniform({5, 2}, 1), mesh, Shard(0)),
            place(ids, mesh, Replicate()))),
        gradient(uniform({5, 2}, 1), ids)));
  });
}

TEST(EmbeddingTest, LayoutsAndCommunication) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto run = [&](const Placement& weight, const Placement& output) {
      auto w = in_layout(variable({7, 4}, 1), mesh, {weight});
      w.set_requires_grad(true);
      const auto i = in_layout(indices(), mesh, {Replicate()});
      Collectives collectives;
      const auto y = at::embedding(w, i);
      EXPECT_EQ(collectives.take(), "");
      EXPECT_TRUE(DTensor(y).placements()[0] == output);
      y.backward(in_layout(uniform({3, 4, 4}, 2), mesh, {Replicate()}));
      EXPECT_EQ(collectives.take(), "");
      EXPECT_TRUE(DTensor(w.grad()).placements()[0] == weight);
    };
    run(Shard(0), Partial(ReduceOp::kSum));
    run(Shard(1), Shard(2));
    run(Replicate(), Replicate());
  });
}

TEST(EmbeddingTest, RefusesIndicesThatNoRankHas) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto w = in_layout(variable({7, 4}, 1), mesh, {Shard(0)});
    for (const int64_t bad : {-1, 7}) {
      const auto i =
          in_layout(at::full({2}, bad, at::kLong), mesh, {Replicate()});
      try {
        at::embedding(w, i);
        ADD_FAILURE() << "no error";
      } catch (const c10::IndexError& e) {
        EXPECT_STREQ(
            e.what_without_backtrace(),
            "[aten::embedding] index out of range: the table has 7 rows. "
            "Pass indices of at least 0 and below that number.");
      }
    }
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
