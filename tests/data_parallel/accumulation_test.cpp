// SPDX-License-Identifier: BSD-3-Clause
// Gradient accumulation over many backward passes before the reduction over
// ranks, in the dtype of the reduction.
#include <dtensor/data_parallel/fully_shard.h>
#include <dtensor/data_parallel/replicate.h>
#include <tests/parallel/modules.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

constexpr int64_t kPasses = 1000; // above 256, where bfloat16 sums stop growing

struct CounterImpl : torch::nn::Module {
  CounterImpl() : w(register_parameter("w", torch::ones({5}))) {}
  at::Tensor forward(const at::Tensor& x) {
    return x * w;
  }
  at::Tensor w;
};
TORCH_MODULE(Counter);

const MixedPrecisionPolicy kMixed{
    .param_dtype = at::kBFloat16,
    .reduce_dtype = at::kFloat};

// Runs backward passes with a gradient of 1 each.
template <class SetSync>
void count_passes(Counter& counter, at::ScalarType dtype, SetSync set_sync) {
  const auto x = torch::ones({5}, dtype);
  for (int64_t i = 0; i < kPasses; ++i) {
    set_sync(i + 1 == kPasses);
    counter(x).sum().backward();
  }
}

void expect_gradient(const Counter& counter, double value) {
  const auto& grad = counter->w.grad();
  ASSERT_TRUE(grad.defined());
  EXPECT_EQ(grad.scalar_type(), counter->w.scalar_type());
  expect_close(grad, torch::full({5}, value), "gradient", 0);
}

TEST(Accumulation, OfUnitsIsInTheDtypeOfTheirSum) {
  for (const int64_t ranks : {1, 2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"dp"});
      Counter counter;
      auto unit = fully_shard(*counter, {.mesh = mesh, .mp_policy = kMixed});
      count_passes(counter, at::kBFloat16, [&](bool syncs) {
        unit.set_requires_gradient_sync(syncs);
      });
      expect_gradient(counter, kPasses);
    });
  }
}

TEST(Accumulation, OfUnitsInBfloat16IsInTheDtypeOfTheirSum) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    Counter counter;
    counter->to(at::kBFloat16);
    auto unit = fully_shard(
        *counter, {.mesh = mesh, .mp_policy = {.reduce_dtype = at::kFloat}});
    count_passes(counter, at::kBFloat16, [&](bool syncs) {
      unit.set_requires_gradient_sync(syncs);
    });
    expect_gradient(counter, kPasses);
  });
}

TEST(Accumulation, OfRepeatedUnitsIsInTheDtypeOfTheirSum) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dr", "dp"});
    Counter counter;
    auto unit = fully_shard(*counter, {.mesh = mesh, .mp_policy = kMixed});
    count_passes(counter, at::kBFloat16, [&](bool syncs) {
      unit.set_requires_all_reduce(syncs);
    });
    expect_gradient(counter, kPasses);
  });
}

// A reduce_dtype narrower than the gradient does not narrow the accumulation.
TEST(Accumulation, IsNeverNarrowerThanGradients) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    Counter counter;
    auto unit = fully_shard(
        *counter, {.mesh = mesh, .mp_policy = {.reduce_dtype = at::kBFloat16}});
    count_passes(counter, at::kFloat, [&](bool syncs) {
      unit.set_requires_gradient_sync(syncs);
    });
    expect_gradient(counter, kPasses);
  });
}

TEST(Accumulation, OfReplicasIsInTheDtypeOfTheirSum) {
  for (const int64_t ranks : {1, 2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"dp"});
      Counter counter;
      counter->to(at::kBFloat16);
      auto replicas = replicate(*counter, mesh, {.reduce_dtype = at::kFloat});
      for (int step = 0; step < 2; ++step) {
        counter->zero_grad();
        count_passes(counter, at::kBFloat16, [&](bool syncs) {
          replicas.set_requires_gradient_sync(syncs);
          EXPECT_FALSE(counter->w.grad().defined());
        });
        expect_gradient(counter, kPasses);
      }
    });
  }
}

// Without reduce_dtype, replicas accumulate in the dtype of a single process.
TEST(Accumulation, OfReplicasIsThatOfOneProcessByDefault) {
  Counter plain;
  plain->to(at::kBFloat16);
  count_passes(plain, at::kBFloat16, [](bool) {});
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    Counter counter;
    counter->to(at::kBFloat16);
    auto replicas = replicate(*counter, mesh);
    count_passes(counter, at::kBFloat16, [&](bool syncs) {
      replicas.set_requires_gradient_sync(syncs);
    });
    expect_close(counter->w.grad(), plain->w.grad(), "gradient", 0);
  });
}

// Unsynced passes add to earlier averages, also if a pass uses only some
// parameters.
TEST(Accumulation, OfReplicasAddsToEarlierAverages) {
  const auto x = uniform({12, 6}, 3);
  auto plain = filled(Mlp(6, 10));
  for (int pass = 0; pass < 2; ++pass) {
    plain(x).square().mean().backward();
  }
  plain->w1(x).square().mean().backward();
  run_ranks(4, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    auto mine = filled(Mlp(6, 10));
    mine->to(at::kFloat);
    parallelize_module(*mine, mesh["tp"], mlp_plan());
    auto replicas = replicate(*mine, mesh["dp"], {.reduce_dtype = at::kDouble});
    const auto rows = x.narrow(0, 6 * mesh.get_local_rank("dp"), 6);
    for (const bool syncs : {true, false}) {
      replicas.set_requires_gradient_sync(syncs);
      mine(rows.to(at::kFloat)).square().mean().backward();
    }
    replicas.set_requires_gradient_sync(true);
    full(mine->w1(rows.to(at::kFloat)));
    auto hidden = mine->w1(rows.to(at::kFloat));
    hidden = is_dtensor(hidden) ? full_tensor(hidden) : hidden;
    hidden.square().mean().backward();
    expect_close(mine->w2->weight.grad(), plain->w2->weight.grad(), "w2", 1e-5);
  });
}

// Runs two backward passes on a plain module and on a unit. The first weight
// learns in one of them only.
template <class SetSync>
void expect_gradients_of_frozen(
    const DeviceMesh& mesh,
    bool first_learns,
    const SetSync& set_sync) {
  const auto x = uniform({12, 6}, 3);
  auto plain = filled(Mlp(6, 10));
  auto mine = filled(Mlp(6, 10));
  auto unit = fully_shard(*mine, {.mesh = mesh});
  const auto rows = 12 / mesh.size();
  for (const bool is_last : {false, true}) {
    set_sync(unit, is_last);
    for (auto* each : {&plain, &mine}) {
      (*each)->w1->weight.set_requires_grad(is_last != first_learns);
    }
    plain(x).square().mean().backward();
    mine(x.narrow(0, rows * mesh.get_rank(), rows)).square().mean().backward();
  }
  expect_same_gradients(*mine, *plain, first_learns ? "first" : "last");
}

TEST(Accumulation, OfUnitsAllowsFreezingBetweenPasses) {
  for (const int64_t ranks : {1, 2, 3}) {
    for (const bool first_learns : {false, true}) {
      run_ranks(ranks, [&] {
        expect_gradients_of_frozen(
            init_device_mesh(at::kCPU, {ranks}, {"dp"}),
            first_learns,
            [](FSDPModule& unit, bool syncs) {
              unit.set_requires_gradient_sync(syncs);
            });
      });
    }
  }
}

TEST(Accumulation, OfRepeatedUnitsAllowsFreezingBetweenPasses) {
  for (const bool first_learns : {false, true}) {
    run_ranks(4, [&] {
      expect_gradients_of_frozen(
          init_device_mesh(at::kCPU, {2, 2}, {"dr", "dp"}),
          first_learns,
          [](FSDPModule& unit, bool syncs) {
            unit.set_requires_all_reduce(syncs);
          });
    });
  }
}

// zero_grad() cannot clear gradients that accumulate in another dtype.
TEST(Accumulation, OfReplicasDropsGradientsOfAFailedPass) {
  const auto x = uniform({12, 6}, 3);
  auto plain = filled(Mlp(6, 10));
  plain(x).square().mean().backward();
  for (const bool syncs : {false, true}) {
    run_ranks(2, [&](int64_t rank) {
      const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
      auto mine = filled(Mlp(6, 10));
      mine->to(at::kFloat);
      auto replicas = replicate(*mine, mesh, {.reduce_dtype = at::kDouble});
      const auto rows = x.narrow(0, 6 * rank, 6).to(at::kFloat);
      const auto hidden = mine->w1(rows);
      hidden.register_hook([](const at::Tensor& grad) {
        TORCH_CHECK(false, "a failure after the second Linear");
        return grad;
      });
      const auto loss = mine->w2(torch::gelu(hidden)).square().mean();
      replicas.set_requires_gradient_sync(syncs);
      EXPECT_NE(error_of([&] { loss.backward(); }), "");
      replicas.set_requires_gradient_sync(true);
      mine->zero_grad();
      mine(rows).square().mean().backward();
      for (const auto& item : mine->named_parameters()) {
        expect_close(
            item.value().grad(),
            plain->named_parameters()[item.key()].grad(),
            item.key(),
            1e-5);
      }
    });
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
