// SPDX-License-Identifier: BSD-3-Clause
// loss_parallel: cross entropy on sharded classes.
#include <dtensor/parallel/loss_parallel.h>

#include <dtensor/debug/comm_debug_mode.h>
#include <dtensor/testing/expect.h>
#include <tests/error_of.h>
#include <tests/ops/oracle.h>

#include <ATen/core/Reduction.h>

namespace dtensor {
namespace TEST_SOURCE {

using test_text::error_of;

using namespace dtensor::testing;

constexpr int64_t kReductions[] = {
    at::Reduction::None,
    at::Reduction::Mean,
    at::Reduction::Sum};

at::Tensor classes(at::IntArrayRef sizes, int64_t count, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randint(count, sizes, generator, at::kLong);
}

// Returns the loss, and the gradient of its square with respect to the logits,
// so that samples have different gradients.
Tensors with_gradient(
    const std::function<at::Tensor(const Tensors&)>& loss,
    Tensors operands) {
  auto& logits = operands[0];
  logits = logits.detach().requires_grad_();
  const auto value = loss(operands);
  (value * value).sum().backward();
  return {value.detach(), logits.grad()};
}

struct Setup {
  at::IntArrayRef mesh;
  Placements logits;
  Placements target;
};

void expect_exact(
    const at::Tensor& logits,
    const at::Tensor& target,
    const std::vector<Setup>& setups,
    int64_t ignore_index = 2) {
  const auto weight = uniform({logits.size(logits.dim() == 1 ? 0 : 1)}, 5);
  for (const auto& s : setups) {
    run_ranks(c10::multiply_integers(s.mesh), [&] {
      const auto mesh = init_device_mesh(at::kCPU, s.mesh.vec());
      const auto t = in_layout(target, mesh, s.target);
      const Placements whole(s.mesh.size(), Replicate());
      const auto w = in_layout(weight, mesh, whole);
      for (int options = 0; options < 12; ++options) {
        const auto reduction = kReductions[options % 3];
        const auto smoothing = options % 2 == 0 ? 0.0 : 0.3;
        const bool weighted = options >= 6;
        const auto loss = [&](const Tensors& o, const at::Tensor& l) {
          return at::cross_entropy_loss(
              o[0],
              l,
              weighted ? std::optional(o[1]) : std::nullopt,
              reduction,
              ignore_index,
              smoothing);
        };
        const auto plain = with_gradient(
            [&](const Tensors& o) { return loss(o, target); },
            {logits, weight});
        const auto mine = with_gradient(
            [&](const Tensors& o) {
              const auto guard = loss_parallel();
              return loss(o, t);
            },
            {in_layout(logits, mesh, s.logits), w});
        for (size_t i = 0; i < plain.size(); ++i) {
          SCOPED_TRACE(c10::str("options ", options, ", tensor ", i));
          EXPECT_NO_THROW(testing::expect_close(mine[i], plain[i], 1e-9, 1e-9));
        }
      }
    });
  }
}

TEST(LossParallelTest, SameAsPlain) {
  const Placement r = Replicate();
  expect_exact(
      variable({5, 7}, 1),
      classes({5}, 7, 2),
      {{{2}, {Shard(1)}, {r}},
       {{3}, {Shard(1)}, {r}},
       {{2, 2}, {r, Shard(1)}, {r, r}},
       {{2, 2}, {Shard(1), Shard(0)}, {r, Shard(0)}},
       {{2, 3}, {Shard(0), Shard(1)}, {Shard(0), r}},
       {{2, 3}, {Shard(0), Shard(1)}, {r, r}},
       {{2}, {Shard(0)}, {Shard(0)}}});
}

// Targets may be class probabilities, in any layout.
TEST(LossParallelTest, ClassProbabilitiesAreThePlainOnes) {
  const Placement r = Replicate();
  expect_exact(
      variable({5, 7}, 1),
      uniform({5, 7}, 2).abs(),
      {{{2}, {Shard(1)}, {r}},
       {{2}, {Shard(1)}, {Shard(1)}},
       {{3}, {Shard(1)}, {Shard(0)}},
       {{2}, {Shard(0)}, {Shard(0)}},
       {{2}, {Shard(0)}, {r}},
       {{2, 2}, {Shard(1), Shard(0)}, {r, Shard(0)}},
       {{2, 3}, {Shard(0), Shard(1)}, {Shard(0), r}},
       {{2, 2}, {Shard(1), Shard(1)}, {r, r}}},
      /*ignore_index=*/-100);
  expect_exact(
      variable({2, 4, 3}, 1),
      uniform({2, 4, 3}, 2).abs(),
      {{{3}, {Shard(1)}, {r}}, {{2}, {Shard(2)}, {r}}},
      /*ignore_index=*/-100);
}

TEST(LossParallelTest, PlainProbabilitiesAndWeightsAreTheSameOnAllRanks) {
  const auto logits = variable({5, 7}, 1);
  const auto target = uniform({5, 7}, 2).abs();
  const auto weight = uniform({7}, 5);
  for (const auto& placement : {Placement(Shard(1)), Placement(Shard(0))}) {
    run_ranks(2, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
      const auto loss = [&](const Tensors& o) {
        return at::cross_entropy_loss(
            o[0], target, weight, at::Reduction::Mean, -100, 0.1);
      };
      const auto plain = with_gradient(loss, {logits});
      const auto mine = with_gradient(
          [&](const Tensors& o) {
            const auto guard = loss_parallel();
            const auto value = loss(o);
            EXPECT_EQ(DTensor(value).placements()[0], Replicate());
            return value;
          },
          {in_layout(logits, mesh, {placement})});
      EXPECT_NO_THROW(testing::expect_close(mine[0], plain[0], 1e-9, 1e-9));
      EXPECT_NO_THROW(testing::expect_close(mine[1], plain[1], 1e-9, 1e-9));
    });
  }
}

// Sharded classes are not gathered: only two numbers per sample and the loss
// are communicated.
TEST(LossParallelTest, ProbabilitiesMoveNoLogits) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto logits =
        in_layout(variable({5, 64}, 1), mesh, {Shard(1)}).detach();
    const auto target = uniform({5, 64}, 2).abs();
    const auto guard = loss_parallel();
    CommDebugMode mode;
    at::cross_entropy_loss(logits, target);
    EXPECT_LE(mode.get_total_counts(), 4);
  });
}

TEST(LossParallelTest, APlainTargetOutsideNamesLossParallel) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto logits = in_layout(variable({5, 7}, 1), mesh, {Shard(1)});
    const std::string advice =
        " Make it a DTensor with distribute_tensor, or open loss_parallel(), "
        "in which a plain target counts as replicated and the classes may stay "
        "sharded.";
    for (const auto& target : {classes({5}, 7, 2), uniform({5, 7}, 2).abs()}) {
      const auto text =
          error_of([&] { at::cross_entropy_loss(logits, target); });
      EXPECT_TRUE(text.starts_with(
          "[cross_entropy] got mixed plain tensor and DTensor: the target is "
          "plain next to f64[5, 7] on (tp=2): "))
          << text;
      EXPECT_TRUE(text.ends_with(advice)) << text;
    }
  });
}

// Class 2 is the ignored one.
TEST(LossParallelTest, NegativeLogLikelihoodTakesPlainTargetsAndWeights) {
  const auto logits = uniform({4, 6}, 1);
  const auto target = classes({4}, 6, 2);
  const auto weight = uniform({6}, 3);
  for (const auto reduction : kReductions) {
    const auto loss = [&](const Tensors& t) {
      const auto guard = loss_parallel();
      return at::nll_loss_nd(
          at::log_softmax(t[0], 1), target, weight, reduction);
    };
    const auto plain = with_gradient(loss, {logits});
    run_ranks(2, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {2});
      for (const auto& p :
           {Placement(Shard(0)), Placement(Shard(1)), Placement(Replicate())}) {
        const auto mine = with_gradient(loss, {in_layout(logits, mesh, {p})});
        for (size_t i = 0; i < plain.size(); ++i) {
          EXPECT_TRUE(at::allclose(full_tensor(mine[i]), plain[i])) << i;
        }
      }
      const at::Tensor scores = in_layout(logits, mesh, {Shard(0)});
      EXPECT_NE(
          error_of([&] {
            at::nll_loss_nd(scores, target);
          }).find("got mixed plain tensor and DTensor"),
          std::string::npos);
    });
  }
}

TEST(LossParallelTest, NegativeLogLikelihoodOfPlainTargetsOutsideTheMesh) {
  const auto logits = uniform({4, 6}, 1);
  const auto target = classes({4}, 6, 2);
  const auto plain = at::nll_loss_nd(logits, target);
  run_ranks(3, [&] {
    const auto mesh = make_device_mesh(at::kCPU, at::arange(2), {"tp"});
    const auto guard = loss_parallel();
    const auto loss =
        at::nll_loss_nd(distribute_tensor(logits, mesh, {Shard(0)}), target);
    if (mesh.contains_this_rank()) {
      EXPECT_TRUE(at::allclose(full_tensor(loss), plain));
    }
  });
}

TEST(LossParallelTest, EveryTargetIgnored) {
  const Placement r = Replicate();
  expect_exact(
      variable({5, 7}, 1),
      at::full({5}, 2, at::kLong),
      {{{2}, {Shard(1)}, {r}},
       {{3}, {Shard(1)}, {r}},
       {{2, 2}, {Shard(1), Shard(0)}, {r, Shard(0)}}});
}

TEST(LossParallelTest, EmptyClassShards) {
  const Placement r = Replicate();
  expect_exact(
      variable({2, 4}, 1),
      classes({2}, 4, 2),
      {{{3}, {Shard(1)}, {r}}, {{2, 3}, {Shard(0), Shard(1)}, {Shard(0), r}}});
}

TEST(LossParallelTest, OneSampleAndPositions) {
  const Placement r = Replicate();
  expect_exact(
      variable({7}, 1),
      at::scalar_tensor(3, at::kLong),
      {{{2}, {Shard(0)}, {r}}});
  expect_exact(
      variable({2, 5, 3}, 1),
      classes({2, 3}, 5, 2),
      {{{2}, {Shard(1)}, {r}}, {{2, 2}, {Shard(2), Shard(1)}, {Shard(1), r}}});
}

std::string collectives_of(
    const at::Tensor& logits,
    const at::Tensor& target,
    const std::optional<at::Tensor>& weight,
    double smoothing) {
  auto leaf = logits.detach();
  leaf.set_requires_grad(true);
  Collectives collectives;
  at::Tensor loss;
  {
    const auto guard = loss_parallel();
    loss = at::cross_entropy_loss(
        leaf, target, weight, at::Reduction::Mean, -100, smoothing);
  }
  const auto forward = collectives.take();
  loss.backward();
  EXPECT_EQ(collectives.take(), "");
  EXPECT_TRUE(DTensor(loss).placements() == PlacementsRef({Replicate()}));
  EXPECT_TRUE(DTensor(leaf.grad()).placements() == PlacementsRef({Shard(1)}));
  EXPECT_EQ(leaf.grad().scalar_type(), logits.scalar_type());
  return forward;
}

TEST(LossParallelTest, ThreeAllReducesForwardNoneBackward) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto target = classes({6}, 8, 1); // plain tensor
    const auto weight = uniform({8}, 2);
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const auto x = in_layout(uniform({6, 8}, 1).to(dtype), mesh, {Shard(1)});
      EXPECT_EQ(
          collectives_of(x, target, {}, 0),
          "all_reduce 24, all_reduce 24, all_reduce 24");
      EXPECT_EQ(
          collectives_of(x, target, weight.to(dtype), 0.1),
          "all_reduce 24, all_reduce 48, all_reduce 24");
    }
  });
}

TEST(LossParallelTest, ReducedPrecisionIsComputedInFloat32) {
  const auto x = uniform({16, 40}, 1) * 20;
  const auto target = classes({16}, 40, 1);
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      const auto reduced = x.to(dtype);
      const auto guard = loss_parallel();
      const auto loss =
          at::cross_entropy_loss(in_layout(reduced, mesh, {Shard(1)}), target);
      const auto truth =
          at::cross_entropy_loss(reduced.to(at::kFloat), target).to(dtype);
      EXPECT_TRUE(at::equal(full(loss), truth));
    }
  });
}

TEST(LossParallelTest, OutputLayouts) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    const auto x = in_layout(uniform({4, 6}, 1), mesh, {Shard(0), Shard(1)});
    const auto t = in_layout(classes({4}, 6, 1), mesh, {Shard(0), Replicate()});
    const auto guard = loss_parallel();
    const auto layout = [&](int64_t reduction) {
      return to_string(
          DTensor(at::cross_entropy_loss(x, t, {}, reduction)).placements());
    };
    EXPECT_EQ(layout(at::Reduction::None), "S(0) R");
    EXPECT_EQ(layout(at::Reduction::Sum), "P(sum) R");
    EXPECT_EQ(layout(at::Reduction::Mean), "R R");
  });
}

TEST(LossParallelTest, EndsWithItsScope) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = in_layout(uniform({6, 8}, 1), mesh, {Shard(1)});
    const auto t = in_layout(classes({6}, 8, 1), mesh, {Replicate()});
    Collectives collectives;
    const auto expect = [&](const std::string& what) {
      at::cross_entropy_loss(x, t);
      EXPECT_EQ(collectives.take(), what);
    };
    const std::string parallel = "all_reduce 48, all_reduce 48, all_reduce 48";
    const std::string gathered = "all_gather 192";
    expect(gathered);
    try {
      const auto outer = loss_parallel();
      {
        const auto inner = loss_parallel();
        expect(parallel);
      }
      expect(parallel);
      throw std::runtime_error("leaves the scope");
    } catch (const std::runtime_error&) {
    }
    expect(gathered);
  });
}

TEST(LossParallelTest, Errors) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    const auto target = classes({4}, 8, 1);
    const auto guard = loss_parallel();
    const auto twice =
        in_layout(uniform({4, 8}, 1), mesh, {Shard(1), Shard(1)});
    EXPECT_EQ(
        error_of([&] { at::cross_entropy_loss(twice, target); }),
        "[loss_parallel] the class dimension must be sharded on one mesh "
        "dimension, as Shard(1), but the logits are f64[4, 8] on (dp=2, tp=2): "
        "S(1) S(1). Redistribute them.");
    const auto x = in_layout(uniform({4, 8}, 1), mesh, {Shard(0), Shard(1)});
    EXPECT_EQ(
        error_of([&] { at::cross_entropy_loss(x, target); }),
        "[cross_entropy] the target is a plain tensor, but next to f64[4, 8] "
        "on (dp=2, tp=2): S(0) S(1) every rank needs a different shard of it. "
        "Make it a DTensor with distribute_tensor or from_local.");
    const Placements whole = {Replicate(), Replicate()};
    EXPECT_EQ(
        error_of([&] {
          at::cross_entropy_loss(
              x, in_layout(target.to(at::kInt), mesh, whole));
        }),
        "[cross_entropy] class indices must be int64 or uint8, but the target "
        "is i32. Convert it, or pass probabilities in the shape of the "
        "logits.");
    EXPECT_EQ(
        error_of([&] {
          at::cross_entropy_loss(x, in_layout(classes({3}, 8, 1), mesh, whole));
        }),
        "[cross_entropy] the target has shape [3], but logits f64[4, 8] on "
        "(dp=2, tp=2): S(0) S(1) need [4]. Pass one class index per sample.");
    EXPECT_EQ(
        error_of([&] {
          at::cross_entropy_loss(x, in_layout(target + 8, mesh, whole));
        }),
        "[cross_entropy] a target is out of bounds: the number of classes is "
        "8. Use targets from 0 to 7, or ignore_index (-100).");
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
