// SPDX-License-Identifier: BSD-3-Clause
// SequenceParallel: norms and dropout on activations that are sharded along the
// sequence.
#include <dtensor/debug/check_replicas.h>
#include <dtensor/parallel/nn_modules.h>
#include <dtensor/parallel/sequence_parallel.h>
#include <tests/parallel/modules.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

struct RmsNormImpl : torch::nn::Module {
  explicit RmsNormImpl(int64_t width)
      : weight(register_parameter("weight", torch::ones({width}))) {}
  at::Tensor forward(const at::Tensor& x) {
    return torch::rms_norm(x, weight.sizes(), weight, 1e-6);
  }
  at::Tensor weight;
};
TORCH_MODULE(RmsNorm);

template <class Make>
void expect_like_plain(const Make& make, bool fused_norm = false) {
  const auto whole = uniform({2, 5, 6}, 3); // 5 rows: uneven on 2 and 3 ranks
  auto plain = make();
  const auto leaf = whole.clone().requires_grad_(true);
  const auto truth = plain->forward(leaf);
  const auto weight = uniform(truth.sizes(), 9);
  truth.backward(weight);
  for (const int64_t ranks : {1, 2, 3}) {
    for (const bool local : {false, true}) {
      for (const Placement& given : {Shard(1), Shard(0), Replicate()}) {
        run_ranks(ranks, [&] {
          const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
          auto mine = make();
          parallelize_module(
              *mine,
              mesh,
              SequenceParallel(
                  {.use_local_output = local, .fused_norm = fused_norm}));
          const at::Tensor x =
              distribute_tensor(whole, mesh, {given}, std::nullopt)
                  .requires_grad_(true);
          const auto y = mine->forward(x);
          ASSERT_EQ(is_dtensor(y), !local);
          if (local) {
            expect_close(y, part(truth, mesh, Shard(1)), "output");
            y.backward(part(weight, mesh, Shard(1)));
          } else {
            EXPECT_EQ(layout_of(y), Shard(1));
            expect_close(y, truth, "output");
            y.backward(
                distribute_tensor(weight, mesh, {Shard(1)}, std::nullopt));
          }
          expect_close(x.grad(), leaf.grad(), "gradient of the input");
          expect_same_gradients(*mine, *plain, "norm");
        });
      }
    }
  }
}

TEST(SequenceParallelTest, LayerNormIsThePlainOne) {
  expect_like_plain([] {
    return filled(torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})));
  });
}

TEST(SequenceParallelTest, RmsNormIsThePlainOne) {
  expect_like_plain([] { return filled(RmsNorm(6)); }, true);
}

TEST(SequenceParallelTest, PlainInputIsThisRanksPart) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto plain = filled(RmsNorm(6));
    auto mine = filled(RmsNorm(6));
    parallelize_module(
        *mine, mesh, SequenceParallel({.sequence_dim = 0, .fused_norm = true}));
    const auto x = uniform({4, 6}, 3);
    const auto y = mine(part(x, mesh, Shard(0)));
    EXPECT_EQ(layout_of(y), Shard(0));
    expect_close(y, plain(x), "output");
  });
}

TEST(SequenceParallelTest, DropoutDrawsByGlobalPosition) {
  std::vector<at::Tensor> results;
  for (const int64_t ranks : {1, 2, 3}) {
    run_ranks(ranks, [&](int64_t rank) {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      torch::manual_seed(3);
      hooked::Dropout dropout(0.5);
      parallelize_module(*dropout, mesh, SequenceParallel());
      const at::Tensor x = distribute_tensor(
          torch::ones({2, 5, 6}), mesh, {Shard(1)}, std::nullopt);
      const auto y = dropout(x);
      EXPECT_EQ(layout_of(y), Shard(1));
      const auto whole = full(y);
      if (rank == 0) {
        results.push_back(whole);
      }
      dropout->eval();
      EXPECT_TRUE(at::equal(full(dropout(x)), full(x)));
    });
  }
  EXPECT_TRUE(at::equal(results[0], results[1]));
  EXPECT_TRUE(at::equal(results[0], results[2]));
  EXPECT_GT(results[0].eq(0).sum().item<int64_t>(), 0);
  EXPECT_GT(results[0].eq(2).sum().item<int64_t>(), 0);
}

// Norm of plain operators, which the style cannot intercept.
struct WrittenOutImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const auto mean = x.pow(2).mean(-1, /*keepdim=*/true);
    return x * torch::rsqrt(mean + 1e-6) * weight;
  }
  at::Tensor weight = register_parameter("weight", torch::ones({6}));
};
TORCH_MODULE(WrittenOut);
DTENSOR_MODULE_IMPL(HookedWrittenOut, WrittenOutImpl);

TEST(SequenceParallelTest, AModuleThatCannotWorkIsRefusedByThePlan) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto refusal = [&](auto module) {
      torch::nn::Sequential model(module);
      const auto text = error_of([&] {
        parallelize_module(*model, mesh, {{"0", SequenceParallel()}});
      });
      for (const auto& parameter : model->parameters()) {
        EXPECT_FALSE(is_dtensor(parameter));
      }
      return text;
    };
    const std::string advice =
        " has no hooks, and is not a torch::nn::LayerNorm. Declare it with "
        "DTENSOR_MODULE instead of TORCH_MODULE (dtensor::hooked::Dropout for "
        "torch::nn::Dropout, dtensor::hooked::LayerNorm), or set fused_norm if "
        "its weight goes into torch::rms_norm or torch::layer_norm.";
    const std::string of = "[SequenceParallel] module \"0\" of type ";
    EXPECT_EQ(
        refusal(torch::nn::Linear(6, 6)),
        of + "torch::nn::LinearImpl" + advice);
    EXPECT_EQ(
        refusal(torch::nn::Embedding(6, 6)),
        of + "torch::nn::EmbeddingImpl" + advice);
    EXPECT_EQ(
        refusal(torch::nn::GroupNorm(2, 6)),
        of + "torch::nn::GroupNormImpl" + advice);
    EXPECT_EQ(
        refusal(torch::nn::BatchNorm1d(6)),
        of + "torch::nn::BatchNorm1dImpl" + advice);
    EXPECT_EQ(refusal(WrittenOut()), of + WrittenOut()->name() + advice);
  });
}

TEST(SequenceParallelTest, ANormOfPlainOperatorsWithHooksIsThePlainOne) {
  expect_like_plain([] { return filled(HookedWrittenOut()); });
}

TEST(SequenceParallelTest, IsSilentIfReplicasAreCompared) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto norm = filled(HookedWrittenOut());
    const auto whole = uniform({2, 4, 6}, 3);
    const auto truth = norm->forward(whole).detach();
    parallelize_module(*norm, mesh, SequenceParallel());
    const CheckReplicas check(*norm, mesh);
    expect_close(
        norm->forward(part(whole, mesh, Shard(1))).detach(), truth, "output");
  });
}

struct OptionalResultImpl : torch::nn::Module {
  std::tuple<at::Tensor, at::Tensor> forward(at::Tensor x) {
    return {x * 2, at::Tensor()};
  }
};
DTENSOR_MODULE(OptionalResult);

struct PlainResultImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor&) {
    return torch::zeros({2, 3}, torch::kDouble);
  }
};
DTENSOR_MODULE(PlainResult);

TEST(SequenceParallelTest, UndefinedTensorsPassThrough) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    OptionalResult module;
    parallelize_module(*module, mesh, SequenceParallel());
    const auto whole = uniform({2, 4, 6}, 3);
    const auto [y, none] = module->forward(part(whole, mesh, Shard(1)));
    EXPECT_EQ(layout_of(y), Shard(1));
    expect_close(y, whole * 2, "output");
    EXPECT_FALSE(none.defined());
  });
}

TEST(SequenceParallelTest, APlainOutputIsRefused) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    for (const bool local : {false, true}) {
      PlainResult module;
      torch::nn::Sequential model(module);
      parallelize_module(
          *model, mesh, {{"0", SequenceParallel({.use_local_output = local})}});
      EXPECT_THAT(
          [&] {
            module->forward(uniform({2, 4, 6}, 3));
          },
          ::testing::ThrowsMessage<c10::TypeError>(::testing::HasSubstr(
              "[SequenceParallel] module \"0\" returned a plain tensor: "
              "f64[2, 3]. Compute the output from the input, which is a "
              "DTensor, or convert the output with from_local().")));
    }
  });
}

TEST(SequenceParallelTest, KeepsDTensorsOfModulesWithHooks) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    hooked::Dropout dropout(0.5);
    dropout->eval();
    parallelize_module(
        *dropout,
        mesh,
        SequenceParallel({.use_local_output = true}),
        {.keep_dtensors = true});
    const auto whole = uniform({2, 4, 6}, 3);
    const auto y = dropout(part(whole, mesh, Shard(1)));
    ASSERT_TRUE(is_dtensor(y));
    EXPECT_EQ(layout_of(y), Shard(1));
    expect_close(y, whole, "output");
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
