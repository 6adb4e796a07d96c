// SPDX-License-Identifier: BSD-3-Clause
// Averaging and clipping of gradients, compared with a plain program on all
// data, and the autocast scope.
#include <dtensor/parallel/autocast.h>
#include <dtensor/parallel/gradients.h>
#include <tests/parallel/comm_counts.h>
#include <tests/parallel/modules.h>

#include <cmath>
#include <limits>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

// Returns a model for a 2-D mesh. Each row of ranks has half of the batch, and
// each column has half of the first Linear. The second Linear is plain.
Mlp parallel_mlp(const DeviceMesh& mesh) {
  auto mlp = filled(Mlp(6, 8));
  parallelize_module(
      *mlp, mesh, {{"w1", ColwiseParallel({.output_layouts = Replicate()})}});
  return mlp;
}

at::Tensor batch() {
  return uniform({4, 6}, 9);
}

at::Tensor rows_of(const DeviceMesh& dp) {
  return batch().narrow(0, 2 * dp.get_local_rank(), 2);
}

Mlp plain_after_backward() {
  auto plain = filled(Mlp(6, 8));
  plain(batch()).square().mean().backward();
  return plain;
}

TEST(AverageGradients, EqualsGradientsOfTheFullBatch) {
  const auto plain = plain_after_backward();
  run_ranks(4, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    auto mlp = parallel_mlp(mesh["tp"]);
    mlp(rows_of(mesh["dp"])).square().mean().backward();
    const CommDebugMode comm;
    average_gradients(mlp->parameters(), mesh["dp"]);
    EXPECT_EQ(comm.get_total_counts(), 1);
    expect_same_gradients(*mlp, *plain, "averaged");
  });
}

TEST(AverageGradients, SkipsParametersWithoutGradient) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    Mlp mlp(2, 2);
    average_gradients(mlp->parameters(), mesh);
    EXPECT_FALSE(mlp->w1->weight.grad().defined());
  });
}

TEST(AverageGradients, RejectsGradientsThatAreAlreadySummed) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    auto mlp = parallel_mlp(mesh["tp"]);
    mlp(batch()).sum().backward();
    EXPECT_EQ(
        error_of([&] { average_gradients(mlp->parameters(), mesh["tp"]); }),
        "[average_gradients] a gradient is f64[8, 6] on (tp=2): S(0), "
        "distributed over ranks of (tp=2), and already summed over them. Pass "
        "the mesh dimension over which models are replicated.");
    EXPECT_EQ(
        error_of([&] { average_gradients(mlp->parameters(), mesh); }),
        "[average_gradients] gradients are averaged over one mesh dimension, "
        "but the mesh is (dp=2, tp=2). Pass a slice, such as mesh[\"dp\"].");
  });
}

class ClipGradNorm : public ::testing::TestWithParam<double> {};

TEST_P(ClipGradNorm, IsThePlainOneForMixedParameters) {
  const double p = GetParam();
  for (const double max_norm : {0.01, 1e6}) {
    const auto plain = plain_after_backward();
    const double truth =
        torch::nn::utils::clip_grad_norm_(plain->parameters(), max_norm, p);
    run_ranks(3, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {3}, {"tp"});
      auto mlp = parallel_mlp(mesh); // 8 features on 3 ranks
      mlp(batch()).square().mean().backward();
      const CommDebugMode comm;
      const auto norm = clip_grad_norm_(mlp->parameters(), max_norm, p);
      EXPECT_NEAR(norm, truth, 1e-12 * (1 + truth));
      EXPECT_EQ(comm.get_total_counts(), 1);
      expect_same_gradients(*mlp, *plain, c10::str("norm ", p), 1e-12);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Norms,
    ClipGradNorm,
    ::testing::Values(1., 2., 3., std::numeric_limits<double>::infinity()));

TEST(ClipGradNorm, EqualsThePlainNormInEveryLayout) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    const auto whole = uniform({5, 3}, 3);
    const std::vector<Placements> layouts = {
        {Replicate(), Replicate()},
        {Shard(0), Replicate()},
        {Shard(0), Shard(0)},
        {Shard(1), Shard(0)},
        {Shard(1), Shard(1)}, // the last rank has no column
        {Partial(), Shard(1)},
        {Partial(), Partial()}};
    for (const auto& layout : layouts) {
      auto x = distribute_tensor(whole, mesh, layout).requires_grad_();
      x.mutable_grad() = distribute_tensor(whole, mesh, layout);
      const double norm = clip_grad_norm_(std::vector<at::Tensor>{x}, 0.5);
      EXPECT_NEAR(norm, whole.norm().item<double>(), 1e-12);
      expect_close(x.grad(), whole * (0.5 / (norm + 1e-6)), "clipped");
    }
  });
}

// A rank outside a gradient's mesh would scale its other gradients by another
// norm.
TEST(ClipGradNormErrors, NameGradientsOnOtherRanks) {
  run_ranks(3, [](int64_t rank) {
    const auto mesh = make_device_mesh(at::kCPU, {2}, {0, 2}, {"tp"});
    const auto whole = uniform({4, 3}, 3);
    auto sharded = distribute_tensor(whole, mesh, {Shard(0)}).requires_grad_();
    sharded.mutable_grad() = distribute_tensor(whole, mesh, {Shard(0)});
    auto plain = whole.clone().requires_grad_();
    plain.mutable_grad() = whole.clone();
    const std::vector<at::Tensor> alone = {sharded};
    const std::vector<at::Tensor> both = {plain, sharded};
    if (rank == 1) {
      EXPECT_EQ(clip_grad_norm_(alone, 1), 0);
      EXPECT_EQ(
          error_of([&] { clip_grad_norm_(both, 1); }),
          "[clip_grad_norm_] a gradient is f64[4, 3] on (tp=2): S(0), on a "
          "mesh without rank 1, which has other gradients, so norms would "
          "differ between ranks. Clip the parameters of each mesh separately.");
    } else {
      const auto norm = whole.norm().item<double>();
      EXPECT_NEAR(clip_grad_norm_(alone, 1e6), norm, 1e-12);
      EXPECT_NEAR(clip_grad_norm_(both, 1e6), std::sqrt(2) * norm, 1e-12);
    }
  });
}

TEST(ClipGradNormErrors, NameTheInvalidArgument) {
  auto x = at::ones({2}).requires_grad_();
  x.mutable_grad() = at::full({2}, std::nan(""));
  const std::vector<at::Tensor> all = {x};
  EXPECT_EQ(
      error_of([&] { clip_grad_norm_(all, 1, 2, true); }),
      "[clip_grad_norm_] the norm of the gradients is nan. Look for gradients "
      "that are not finite, or pass error_if_nonfinite = false.");
  EXPECT_TRUE(std::isnan(clip_grad_norm_(all, 1)));
  EXPECT_EQ(
      error_of([&] { clip_grad_norm_(all, 1, 0); }),
      "[clip_grad_norm_] invalid norm_type: 0. Use a positive number, or "
      "infinity for the largest magnitude.");
}

TEST(AutocastScope, CastsUntilItEndsAndNests) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto x = at::rand({4, 4});
    const auto w = at::rand({4, 4});
    const auto a = distribute_tensor(x, mesh, {Shard(0)}, std::nullopt);
    const auto b = distribute_tensor(w, mesh, {Replicate()}, std::nullopt);
    {
      const Autocast scope(at::kCPU, at::kBFloat16);
      const auto y = a.matmul(b);
      EXPECT_EQ(y.scalar_type(), at::kBFloat16);
      EXPECT_TRUE(at::equal(full(y), x.matmul(w)));
      {
        const Autocast off(at::kCPU, std::nullopt, false);
        EXPECT_EQ(a.matmul(b).scalar_type(), at::kFloat);
      }
      EXPECT_EQ(a.matmul(b).scalar_type(), at::kBFloat16);
    }
    EXPECT_EQ(a.matmul(b).scalar_type(), at::kFloat);
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
