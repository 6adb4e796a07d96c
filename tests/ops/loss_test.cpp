// SPDX-License-Identifier: BSD-3-Clause
#include "oracle.h"

#include <ATen/core/Reduction.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::testing;

constexpr int64_t kReductions[] = {
    at::Reduction::None,
    at::Reduction::Mean,
    at::Reduction::Sum};

const Placements kAll = {
    Replicate(),
    Shard(0),
    Shard(1),
    Partial(ReduceOp::kSum)};
const Placements kTarget = {Replicate(), Shard(0)};

at::Tensor classes(at::IntArrayRef sizes, int64_t count, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randint(count, sizes, generator, at::kLong);
}

TEST(CrossEntropyTest, SameAsPlain) {
  auto target = classes({5}, 4, 1);
  target[1] = -100;
  for (const auto reduction : kReductions) {
    for (const double smoothing : {0.0, 0.2}) {
      for (const bool weighted : {false, true}) {
        expect_same_as_plain(
            {"cross_entropy " + std::to_string(reduction),
             {variable({5, 4}, 1), target, uniform({4}, 3)},
             {kAll, kTarget, kTarget},
             [=](const Tensors& t) {
               return at::cross_entropy_loss(
                   t[0],
                   t[1],
                   weighted ? std::optional(t[2]) : std::nullopt,
                   reduction,
                   -100,
                   smoothing);
             }});
      }
    }
  }
}

// 156 is -100 modulo 256, but not the ignored class.
TEST(CrossEntropyTest, TargetsOfOneByte) {
  expect_same_as_plain(
      {"cross_entropy",
       {variable({5, 200}, 1), at::full({5}, 156, at::kByte)},
       {kAll, kTarget},
       [](const Tensors& t) { return at::cross_entropy_loss(t[0], t[1]); }});
}

// If every target is ignored, the mean is NaN and the gradient of the logits is
// zero.
TEST(CrossEntropyTest, EveryTargetIgnored) {
  const auto ignored = at::full({5}, -100, at::kLong);
  const auto some = at::tensor({0, -100, 0, 0, -100}, at::kLong);
  const auto weight = at::tensor({0.0, 1.0, 1.0, 2.0}, at::kDouble);
  for (const auto& target : {ignored, some}) {
    for (const auto reduction : {at::Reduction::Mean, at::Reduction::Sum}) {
      for (const double smoothing : {0.0, 0.2}) {
        for (const bool weighted : {false, true}) {
          expect_same_as_plain(
              {c10::str(
                   "cross_entropy ", reduction, " ", smoothing, " ", weighted),
               {variable({5, 4}, 1), target, weight},
               {kAll, kTarget, kTarget},
               [=](const Tensors& t) {
                 return at::cross_entropy_loss(
                     t[0],
                     t[1],
                     weighted ? std::optional(t[2]) : std::nullopt,
                     reduction,
                     -100,
                     smoothing);
               }},
              6);
        }
      }
    }
  }
}

TEST(CrossEntropyTest, OtherShapes) {
  for (const auto reduction : kReductions) {
    expect_same_as_plain(
        {"one sample",
         {variable({4}, 1), at::scalar_tensor(2, at::kLong)},
         {{Replicate(), Shard(0), Partial(ReduceOp::kSum)}, {Replicate()}},
         [=](const Tensors& t) {
           return at::cross_entropy_loss(t[0], t[1], {}, reduction);
         }});
    expect_same_as_plain(
        {"positions",
         {variable({2, 4, 3}, 1), classes({2, 3}, 4, 2)},
         {{Replicate(), Shard(0), Shard(1), Shard(2)},
          {Replicate(), Shard(0), Shard(1)}},
         [=](const Tensors& t) {
           return at::cross_entropy_loss(t[0], t[1], {}, reduction, 1);
         }});
    expect_same_as_plain(
        {"probabilities",
         {variable({5, 4}, 1), uniform({5, 4}, 2), uniform({4}, 3)},
         {kAll, kAll, kTarget},
         [=](const Tensors& t) {
           return at::cross_entropy_loss(
               t[0], t[1], t[2], reduction, -100, 0.1);
         }});
  }
}

// Operators do not shard a batch of fewer samples than ranks, so its loss stays
// an average over ranks.
TEST(CrossEntropyTest, AveragedProbabilities) {
  const auto loss_of = [](const at::Tensor& logits,
                          const at::Tensor& target,
                          int64_t reduction) {
    return at::cross_entropy_loss(logits, target, {}, reduction);
  };
  for (const int64_t batch : {1, 2, 7}) {
    const auto target = uniform({batch, 5}, 2);
    for (const auto reduction : kReductions) {
      auto plain = variable({batch, 5}, 1);
      const auto truth = loss_of(plain, target, reduction);
      truth.sum().backward();
      run_ranks(3, [&] {
        const auto mesh = init_device_mesh(at::kCPU, {3});
        const auto averaged = place(target, mesh, Partial(ReduceOp::kAvg));
        for (const auto& p : Placements{Replicate(), Shard(0), Shard(1)}) {
          SCOPED_TRACE(c10::str(p, " ", batch, " ", reduction));
          auto x = place(plain.detach(), mesh, p);
          x.set_requires_grad(true);
          const auto loss = loss_of(x, averaged, reduction);
          EXPECT_EQ(
              DTensor(loss).placements()[0].is_partial(),
              p == Shard(0) && reduction == at::Reduction::Sum);
          EXPECT_TRUE(close(full(loss), truth));
          loss.sum().backward();
          EXPECT_TRUE(close(full(x.grad()), plain.grad()));
        }
      });
    }
  }
}

TEST(CrossEntropyTest, DifferentiatesTwice) {
  const auto x = variable({5, 4}, 1);
  const auto target = classes({5}, 4, 1);
  const auto twice = [](const at::Tensor& logits, const at::Tensor& t) {
    const auto loss = at::cross_entropy_loss(logits, t);
    const auto grad = torch::autograd::grad({loss}, {logits}, {}, {}, true)[0];
    return torch::autograd::grad({(grad * grad).sum()}, {logits})[0];
  };
  const auto truth = twice(x, target);
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    for (const auto& layout : {Replicate(), Shard(0)}) {
      auto mine = in_layout(x, mesh, {layout});
      mine.set_requires_grad(true);
      const auto t = in_layout(target, mesh, {layout});
      EXPECT_TRUE(close(full(twice(mine, t)), truth)) << layout;
    }
  });
}

TEST(CrossEntropyTest, ShardedClassesAreGatheredOnce) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    auto x = in_layout(variable({6, 4}, 1), mesh, {Shard(1)});
    x.set_requires_grad(true);
    const auto t = in_layout(classes({6}, 4, 1), mesh, {Replicate()});
    Collectives collectives;
    const auto loss = at::cross_entropy_loss(x, t);
    EXPECT_EQ(collectives.take(), "all_gather 96");
    loss.backward();
    EXPECT_EQ(collectives.take(), "");
    EXPECT_TRUE(DTensor(x.grad()).placements()[0] == Shard(1));
  });
}

TEST(NllLossTest, SameAsPlain) {
  auto target = classes({5}, 4, 1);
  target[0] = 2;
  for (const auto reduction : kReductions) {
    for (const bool weighted : {false, true}) {
      expect_same_as_plain(
          {"nll_loss " + std::to_string(reduction),
           {variable({5, 4}, 1), target, uniform({4}, 3)},
           {kAll, kTarget, kTarget},
           [=](const Tensors& t) {
             return at::nll_loss(
                 t[0],
                 t[1],
                 weighted ? std::optional(t[2]) : std::nullopt,
                 reduction,
                 2);
           }});
      expect_same_as_plain(
          {"nll_loss2d " + std::to_string(reduction),
           {variable({3, 4, 2, 5}, 1),
            classes({3, 2, 5}, 4, 1),
            uniform({4}, 3)},
           {{Replicate(), Shard(0), Shard(1), Shard(2), Shard(3)},
            {Replicate(), Shard(0), Shard(2)},
            kTarget},
           [=](const Tensors& t) {
             return at::nll_loss2d(
                 t[0],
                 t[1],
                 weighted ? std::optional(t[2]) : std::nullopt,
                 reduction,
                 2);
           }});
    }
  }
}

// The sum over both ranks, 81920, does not fit into Half.
TEST(NllLossTest, MeanOfLargeTermsInHalf) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto rows = [&](const at::Tensor& t) {
      return distribute_tensor(t, mesh, {Shard(0)}, std::nullopt);
    };
    const auto loss = at::nll_loss(
        rows(at::full({8192, 2}, -10, at::kHalf)),
        rows(at::zeros({8192}, at::kLong)));
    EXPECT_EQ(DTensor(loss).full_tensor().item<float>(), 10);
  });
}

struct Loss {
  std::string name;
  std::function<at::Tensor(const Tensors&, int64_t)> fn;
};

TEST(ElementwiseLossTest, SameAsPlain) {
  const std::vector<Loss> losses = {
      {"mse_loss", [](auto& t, auto r) { return at::mse_loss(t[0], t[1], r); }},
      {"l1_loss", [](auto& t, auto r) { return at::l1_loss(t[0], t[1], r); }},
      {"smooth_l1_loss",
       [](auto& t, auto r) { return at::smooth_l1_loss(t[0], t[1], r, 0.2); }},
      {"huber_loss",
       [](auto& t, auto r) { return at::huber_loss(t[0], t[1], r, 0.2); }},
      {"soft_margin_loss",
       [](auto& t, auto r) { return at::soft_margin_loss(t[0], t[1], r); }},
      {"kl_div", [](auto& t, auto r) { return at::kl_div(t[0], t[1], r); }},
      {"binary_cross_entropy",
       [](auto& t, auto r) {
         return at::binary_cross_entropy(t[0], t[1], t[2], r);
       }},
      {"binary_cross_entropy_with_logits",
       [](auto& t, auto r) {
         return at::binary_cross_entropy_with_logits(t[0], t[1], t[2], t[3], r);
       }},
  };
  for (const auto& loss : losses) {
    for (const auto reduction : kReductions) {
      expect_same_as_plain(
          {loss.name + " " + std::to_string(reduction),
           {uniform({5, 3}, 1).requires_grad_(true),
            uniform({5, 3}, 2),
            uniform({5, 3}, 3),
            uniform({3}, 4)},
           {kAll, kAll, kAll, kTarget},
           [&](const Tensors& t) { return loss.fn(t, reduction); }},
          25);
    }
  }
}

TEST(ElementwiseLossTest, MeanOfUnevenShardsStaysPartial) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto a = in_layout(uniform({5}, 1), mesh, {Shard(0)});
    const auto b = in_layout(uniform({5}, 2), mesh, {Shard(0)});
    Collectives collectives;
    const auto loss = at::mse_loss(a, b);
    EXPECT_EQ(collectives.take(), "");
    EXPECT_TRUE(DTensor(loss).placements()[0] == Partial(ReduceOp::kSum));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
