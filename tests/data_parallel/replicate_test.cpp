// SPDX-License-Identifier: BSD-3-Clause
// replicate(), compared with a plain module on all rows.
#include <dtensor/data_parallel/replicate.h>
#include <dtensor/debug/comm_debug_mode.h>
#include <tests/parallel/modules.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

Mlp make_mlp() {
  return filled(Mlp(6, 10));
}

at::Tensor my_rows(const at::Tensor& whole, const DeviceMesh& mesh) {
  const auto rows = whole.size(0) / mesh.size();
  return whole.narrow(0, rows * mesh.get_local_rank(), rows);
}

TEST(Replicate, AveragesInBuckets) {
  const auto x = uniform({12, 6}, 3);
  auto plain = make_mlp();
  plain(x).square().mean().backward();
  for (const int64_t ranks : {1, 2, 3, 4}) {
    for (const int64_t bucket_bytes : {1, 600, 1 << 20}) {
      run_ranks(ranks, [&] {
        const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"dp"});
        auto mlp = make_mlp();
        replicate(*mlp, mesh, {.bucket_cap_bytes = bucket_bytes});
        torch::optim::SGD optimizer(mlp->parameters(), 0.1);
        for (int pass = 0; pass < 2; ++pass) {
          optimizer.zero_grad(/*set_to_none=*/pass == 0);
          const CommDebugMode comm;
          mlp(my_rows(x, mesh)).square().mean().backward();
          const int64_t buckets = bucket_bytes == 1 ? 4
              : bucket_bytes == 600                 ? 2
                                                    : 1;
          EXPECT_EQ(comm.get_total_counts(), ranks == 1 ? 0 : buckets);
          expect_same_gradients(*mlp, *plain, "buckets");
        }
      });
    }
  }
}

TEST(Replicate, AddsUpUntilItIsToSum) {
  const auto x = uniform({12, 6}, 3);
  auto plain = make_mlp();
  for (int part = 0; part < 3; ++part) {
    plain(x * (part + 1)).square().mean().backward();
  }
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    auto mlp = make_mlp();
    auto replicated = replicate(*mlp, mesh);
    for (int part = 0; part < 3; ++part) {
      replicated.set_requires_gradient_sync(part == 2);
      mlp(my_rows(x, mesh) * (part + 1)).square().mean().backward();
    }
    expect_same_gradients(*mlp, *plain, "accumulated");
  });
}

TEST(Replicate, KeepsLayoutsOfTensorParallelism) {
  const auto x = uniform({12, 6}, 3);
  auto plain = make_mlp();
  plain(x).square().mean().backward();
  run_ranks(4, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    auto mlp = make_mlp();
    parallelize_module(*mlp, mesh["tp"], mlp_plan());
    replicate(*mlp, mesh["dp"]);
    mlp(my_rows(x, mesh["dp"])).square().mean().backward();
    expect_same_gradients(*mlp, *plain, "with tp");
  });
}

// A pass that uses only some parameters preserves the gradients of others.
TEST(Replicate, AddsToWhatThereIs) {
  const auto x = uniform({12, 6}, 3);
  run_ranks(3, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {3}, {"dp"});
    auto mlp = make_mlp();
    auto truth = make_mlp();
    replicate(*mlp, mesh);
    mlp(my_rows(x, mesh)).square().mean().backward();
    truth(x).square().mean().backward();
    mlp->w1(my_rows(x, mesh)).square().mean().backward();
    truth->w1(x).square().mean().backward();
    expect_same_gradients(*mlp, *truth, "of two passes");
    mlp->zero_grad();
    mlp->w1(my_rows(x, mesh)).square().mean().backward();
    EXPECT_FALSE(mlp->w2->weight.grad().defined());
  });
}

TEST(Replicate, SeesWhatHooksMakeOfGradients) {
  const auto x = uniform({12, 6}, 3);
  const auto triple = [](const at::Tensor& gradient) { return gradient * 3; };
  auto plain = make_mlp();
  plain->w1->weight.register_hook(triple);
  plain->w2->weight.register_hook(triple);
  plain(x).square().mean().backward();
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    auto mlp = make_mlp();
    mlp->w1->weight.register_hook(triple);
    replicate(*mlp, mesh);
    mlp->w2->weight.register_hook(triple);
    mlp(my_rows(x, mesh)).square().mean().backward();
    expect_same_gradients(*mlp, *plain, "hooks");
  });
}

// grad() returns this rank's gradient, and accumulates nothing.
TEST(Replicate, KeepsGradientsThatAreNotAccumulated) {
  const auto x = uniform({12, 6}, 3);
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    auto mlp = make_mlp();
    auto plain = make_mlp();
    replicate(*mlp, mesh);
    const CommDebugMode comm;
    const auto mine = my_rows(x, mesh);
    const auto gradients =
        torch::autograd::grad({mlp(mine).square().mean()}, {mlp->w1->weight});
    plain(mine).square().mean().backward();
    expect_close(gradients[0], plain->w1->weight.grad(), "this rank's");
    EXPECT_FALSE(mlp->w1->weight.grad().defined());
    EXPECT_EQ(comm.get_total_counts(), 0);
  });
}

// Activation checkpointing: recomputes a module in the backward pass.
struct Recomputed : torch::autograd::Function<Recomputed> {
  static at::Tensor forward(
      torch::autograd::AutogradContext* context,
      const at::Tensor& x,
      torch::nn::LinearImpl* linear) {
    context->save_for_backward({x});
    context->saved_data["linear"] = reinterpret_cast<int64_t>(linear);
    return linear->forward(x);
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& gradients) {
    const torch::AutoGradMode with_grad(true);
    auto* linear = reinterpret_cast<torch::nn::LinearImpl*>(
        context->saved_data["linear"].toInt());
    const auto x =
        context->get_saved_variables()[0].detach().set_requires_grad(true);
    torch::autograd::backward({linear->forward(x)}, {gradients[0]});
    return {x.grad(), at::Tensor()};
  }
};

TEST(Replicate, AveragesWhatBackwardPassesRecompute) {
  const auto x = uniform({12, 6}, 3);
  auto plain = make_mlp();
  plain(x).square().mean().backward();
  for (const int64_t bucket_bytes : {1, 1 << 20}) {
    run_ranks(2, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
      auto mlp = make_mlp();
      replicate(*mlp, mesh, {.bucket_cap_bytes = bucket_bytes});
      for (int pass = 0; pass < 2; ++pass) {
        mlp->zero_grad();
        const auto mine = my_rows(x, mesh).clone().set_requires_grad(true);
        const auto hidden = torch::gelu(Recomputed::apply(mine, mlp->w1.get()));
        mlp->w2(hidden).square().mean().backward();
        expect_same_gradients(*mlp, *plain, "recomputed");
      }
    });
  }
}

TEST(Replicate, DetectsUsedParameters) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    auto mlp = make_mlp();
    replicate(*mlp, mesh);
    auto y = mlp->w1->weight.sum();
    if (mesh.get_rank() == 1) {
      y = y + mlp->w2->weight.sum();
    }
    y.backward();
    expect_close(mlp->w1->weight.grad(), at::ones({10, 6}), "by both");
    expect_close(mlp->w2->weight.grad(), at::full({6, 10}, 0.5), "by one");
    EXPECT_FALSE(mlp->w1->bias.grad().defined());
  });
}

// Parameters that are frozen at the call take part once they learn.
TEST(Replicate, AveragesUnfrozenParameters) {
  const auto x = uniform({12, 6}, 3);
  for (const int64_t bucket_bytes : {1, 1 << 20}) {
    run_ranks(2, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
      auto mlp = make_mlp();
      auto plain = make_mlp();
      mlp->w1->weight.set_requires_grad(false);
      plain->w1->weight.set_requires_grad(false);
      replicate(*mlp, mesh, {.bucket_cap_bytes = bucket_bytes});
      for (int64_t pass = 0; pass < 2; ++pass) {
        const CommDebugMode comm;
        mlp(my_rows(x, mesh)).square().mean().backward();
        EXPECT_EQ(comm.get_total_counts(), bucket_bytes == 1 ? 3 + pass : 1);
        plain(x).square().mean().backward();
        expect_same_gradients(*mlp, *plain, c10::str("pass ", pass));
        mlp->w1->weight.set_requires_grad(true);
        plain->w1->weight.set_requires_grad(true);
      }
    });
  }
}

// Frozen parameters may be distributed over the replicas.
TEST(Replicate, SkipsFrozenParametersOfTheSameRanks) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    auto mlp = make_mlp();
    parallelize_module(*mlp->w1, mesh, ColwiseParallel());
    for (auto& parameter : mlp->w1->parameters()) {
      parameter.set_requires_grad(false);
    }
    replicate(*mlp, mesh);
    mlp->w2(uniform({4, 10}, 1)).sum().backward();
    EXPECT_TRUE(mlp->w2->weight.grad().defined());
  });
}

TEST(Replicate, NamesParametersThatWereDestroyed) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    auto mlp = make_mlp();
    replicate(*mlp, mesh);
    mlp->w1 = mlp->replace_module("w1", filled(torch::nn::Linear(6, 10)));
    EXPECT_EQ(
        error_of([&] {
          mlp(uniform({4, 6}, 1)).sum().backward();
        }),
        "[replicate] parameter \"w1.weight\" was destroyed. Replace modules "
        "and parameters before replicate().");
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
