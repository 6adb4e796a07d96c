// SPDX-License-Identifier: BSD-3-Clause
// Training with parallelized modules: optimizers, tied and frozen parameters,
// other dtypes, autocast, and forward without gradients.
#include <dtensor/parallel/tie_weights.h>
#include <tests/parallel/modules.h>

#include <ATen/autocast_mode.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

template <class Fn>
void on_two_ranks(const Fn& fn) {
  run_ranks(2, [&] { fn(init_device_mesh(at::kCPU, {2}, {"tp"})); });
}

TEST(TrainingTest, OptimizersMadeBeforeAndAfterSeeTheSameParameters) {
  on_two_ranks([](const DeviceMesh& mesh) {
    auto plain = filled(Mlp(6, 7));
    torch::optim::AdamW reference(plain->parameters(), 1e-2);
    train(plain, reference);
    auto before = filled(Mlp(6, 7));
    torch::optim::AdamW early(before->parameters(), 1e-2);
    parallelize_module(*before, mesh, mlp_plan());
    train(before, early);
    expect_same_parameters(*before, *plain);
    auto after = filled(Mlp(6, 7));
    parallelize_module(*after, mesh, mlp_plan());
    torch::optim::AdamW late(after->parameters(), 1e-2);
    train(after, late);
    expect_same_parameters(*after, *plain);
  });
}

struct TiedHeadImpl : torch::nn::Module {
  TiedHeadImpl()
      : embedding(register_module("embedding", torch::nn::Embedding(11, 6))),
        head(register_module(
            "head",
            torch::nn::Linear(torch::nn::LinearOptions(6, 11).bias(false)))) {}
  void tie() {
    tie_weights(*head, *embedding);
  }
  at::Tensor forward(const at::Tensor& tokens) {
    return head(embedding(tokens));
  }
  torch::nn::Embedding embedding;
  torch::nn::Linear head;
};
TORCH_MODULE(TiedHead);

TEST(TrainingTest, TiedEmbeddingAndHeadStayTied) {
  on_two_ranks([](const DeviceMesh& mesh) {
    const auto tokens = at::arange(12, at::kLong).remainder(11).view({2, 6});
    const auto make = [] {
      auto model = filled(TiedHead());
      model->tie();
      return model;
    };
    const auto step = [&](TiedHead& model) {
      torch::optim::SGD sgd({model->embedding->weight}, 0.1);
      const auto y = model(tokens);
      y.square().sum().backward();
      sgd.step();
      return y;
    };
    auto plain = make();
    const auto truth = step(plain);
    auto mine = make();
    parallelize_module(
        *mine,
        mesh,
        {{"embedding", RowwiseParallel({.input_layouts = Replicate()})},
         {"head", ColwiseParallel({.output_layouts = Replicate()})}});
    const auto y = step(mine);
    expect_close(y, truth, "output", 1e-11);
    EXPECT_TRUE(mine->head->weight.is_same(mine->embedding->weight));
    EXPECT_EQ(layout_of(mine->head->weight.grad()), Shard(0));
    expect_close(
        mine->head->weight.grad(), plain->head->weight.grad(), "grad", 1e-10);
    expect_close(mine->head->weight, plain->head->weight, "weight", 1e-10);
  });
}

// Modules may be parallelized separately and tied afterwards, as in the tests
// of Python's styles.
TEST(TrainingTest, ModulesMayBeTiedAfterwards) {
  on_two_ranks([](const DeviceMesh& mesh) {
    const auto tokens = at::arange(12, at::kLong).remainder(11).view({2, 6});
    for (const bool to_embedding : {true, false}) {
      const auto tie = [&](TiedHead& model) {
        auto& mine =
            to_embedding ? model->head->weight : model->embedding->weight;
        mine = to_embedding ? model->embedding->weight : model->head->weight;
        return mine;
      };
      auto plain = filled(TiedHead());
      auto mine = filled(TiedHead());
      parallelize_module(*mine->embedding, mesh, RowwiseParallel());
      parallelize_module(
          *mine->head, mesh, ColwiseParallel({.output_layouts = Replicate()}));
      auto theirs = tie(plain);
      auto weight = tie(mine);
      for (int step = 0; step < 2; ++step) {
        const auto y = mine(tokens);
        const auto truth = plain(tokens);
        EXPECT_FALSE(is_dtensor(y));
        expect_close(y, truth, "output", 1e-10);
        y.square().sum().backward();
        truth.square().sum().backward();
        EXPECT_EQ(layout_of(weight.grad()), Shard(0));
        expect_close(weight.grad(), theirs.grad(), "gradient", 1e-9);
        torch::optim::SGD({weight}, 1e-3).step();
        torch::optim::SGD({theirs}, 1e-3).step();
      }
      const torch::NoGradGuard no_grad;
      expect_close(mine(tokens), plain(tokens), "no_grad", 1e-9);
    }
  });
}

TEST(TrainingTest, ModulesTiedAfterwardsHaveOneStyle) {
  on_two_ranks([](const DeviceMesh& mesh) {
    auto mlp = filled(Mlp(6, 6));
    parallelize_module(*mlp, mesh, mlp_plan());
    mlp(uniform({2, 6}, 1));
    mlp->w2->weight = mlp->w1->weight;
    EXPECT_EQ(
        error_of([&] {
          mlp(uniform({2, 6}, 1));
        }),
        "[boundary] module \"w2\" was tied to module \"w1\", which is styled "
        "differently. Give both the same style.");
  });
}

TEST(TrainingTest, TiedLinearsStayTied) {
  on_two_ranks([](const DeviceMesh& mesh) {
    const auto make = [] {
      auto model = filled(Mlp(6, 6));
      tie_weights(*model->w2, *model->w1);
      return model;
    };
    const auto step = [&](Mlp& model) {
      torch::optim::SGD sgd({model->w1->weight}, 0.1);
      model(uniform({4, 6}, 3)).square().sum().backward();
      sgd.step();
    };
    auto plain = make();
    step(plain);
    auto mine = make();
    parallelize_module(
        *mine,
        mesh,
        {{"w?", ColwiseParallel({.output_layouts = Replicate()})}});
    step(mine);
    EXPECT_TRUE(mine->w2->weight.is_same(mine->w1->weight));
    expect_close(
        mine->w1->weight.grad(), plain->w1->weight.grad(), "grad", 1e-10);
    expect_close(mine->w2->weight, plain->w2->weight, "weight", 1e-10);
  });
}

TEST(TrainingTest, FrozenParametersGetNoGradientUntilThawed) {
  on_two_ranks([](const DeviceMesh& mesh) {
    auto plain = filled(Mlp(6, 7));
    auto mine = filled(Mlp(6, 7));
    for (auto* model : {&plain, &mine}) {
      (*model)->w1->weight.set_requires_grad(false);
      (*model)->w2->bias.set_requires_grad(false);
    }
    parallelize_module(
        *mine,
        mesh,
        {{"w1", ColwiseParallel()},
         {"w2", RowwiseParallel({.output_layouts = Shard(0)})}});
    const auto step = [](Mlp& model) {
      model->zero_grad();
      model(uniform({4, 6}, 3)).sum().backward();
    };
    step(plain);
    step(mine);
    EXPECT_FALSE(mine->w1->weight.requires_grad());
    EXPECT_FALSE(mine->w1->weight.grad().defined());
    expect_same_gradients(*mine, *plain, "frozen");
    // A bias that is unfrozen later gets a gradient in its own layout, too.
    for (auto* model : {&plain, &mine}) {
      (*model)->w2->bias.set_requires_grad(true);
    }
    step(plain);
    step(mine);
    expect_same_gradients(*mine, *plain, "thawed");
  });
}

TEST(TrainingTest, MicroBatchesAccumulate) {
  on_two_ranks([](const DeviceMesh& mesh) {
    auto plain = filled(Mlp(6, 7));
    auto mine = filled(Mlp(6, 7));
    parallelize_module(
        *mine,
        mesh,
        {{"w1", ColwiseParallel()},
         {"w2", RowwiseParallel({.output_layouts = Shard(0)})}});
    for (uint64_t batch = 0; batch < 3; ++batch) {
      const auto x = uniform({4, 6}, batch);
      plain(x).sum().backward();
      mine(x).sum().backward();
    }
    expect_same_gradients(*mine, *plain, "accumulated");
  });
}

TEST(TrainingTest, OtherDtypesKeepTheStyles) {
  on_two_ranks([](const DeviceMesh& mesh) {
    auto plain = filled(Mlp(6, 7));
    auto mine = filled(Mlp(6, 7));
    parallelize_module(*mine, mesh, mlp_plan());
    const auto x = uniform({2, 4, 6}, 3).to(at::kFloat);
    for (auto* model : {&plain, &mine}) {
      (*model)->to(at::kFloat);
    }
    const auto truth = plain(x);
    const auto y = mine(x);
    EXPECT_EQ(y.scalar_type(), at::kFloat);
    EXPECT_FALSE(is_dtensor(y));
    expect_close(y, truth, "output", 1e-5);
    truth.sum().backward();
    y.sum().backward();
    EXPECT_EQ(mine->w1->weight.grad().scalar_type(), at::kFloat);
    expect_same_gradients(*mine, *plain, "float", 1e-4);
  });
}

TEST(TrainingTest, ForwardWithoutGradients) {
  on_two_ranks([](const DeviceMesh& mesh) {
    auto plain = filled(Mlp(6, 7));
    auto mine = filled(Mlp(6, 7));
    parallelize_module(*mine, mesh, mlp_plan());
    for (const auto& sizes : {std::vector<int64_t>{4, 6}, {2, 4, 6}}) {
      const auto x = uniform(sizes, 3);
      const auto truth = plain(x).detach();
      {
        const torch::NoGradGuard no_grad;
        const auto y = mine(x);
        EXPECT_FALSE(y.requires_grad());
        expect_close(y, truth, "no_grad");
      }
      const c10::InferenceMode inference;
      expect_close(mine(x), truth, "inference");
      expect_close(mine(x * 1), truth, "inference tensor");
    }
  });
}

class AutocastGuard {
 public:
  AutocastGuard() {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  ~AutocastGuard() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
};

TEST(TrainingTest, Autocast) {
  on_two_ranks([](const DeviceMesh& mesh) {
    for (const auto& sizes : {std::vector<int64_t>{4, 6}, {2, 4, 6}}) {
      auto plain = filled(Mlp(6, 7));
      auto mine = filled(Mlp(6, 7));
      parallelize_module(*mine, mesh, mlp_plan());
      for (auto* model : {&plain, &mine}) {
        (*model)->to(at::kFloat);
      }
      const auto x = uniform(sizes, 3).to(at::kFloat);
      at::Tensor truth;
      at::Tensor y;
      {
        const AutocastGuard autocast;
        truth = plain(x);
        y = mine(x);
      }
      EXPECT_EQ(y.scalar_type(), truth.scalar_type());
      expect_close(y, truth, "output", 0.1);
      truth.sum().backward();
      y.sum().backward();
      EXPECT_EQ(mine->w1->weight.grad().scalar_type(), at::kFloat);
      expect_same_gradients(*mine, *plain, "autocast", 0.2);
    }
  });
}

// A plain gradient may differ between ranks.
TEST(TrainingTest, ClippingOfPlainBesideDistributedGradientsIsAnError) {
  on_two_ranks([](const DeviceMesh& mesh) {
    auto mlp = filled(Mlp(6, 8));
    parallelize_module(
        *mlp, mesh, {{"w1", ColwiseParallel({.output_layouts = Replicate()})}});
    mlp(uniform({2, 6}, 1)).sum().backward();
    EXPECT_EQ(
        error_of(
            [&] { torch::nn::utils::clip_grad_norm_(mlp->parameters(), 0.1); }),
        "[aten::mul_.Tensor] got mixed plain tensor and DTensor: argument "
        "\"self\" is a plain f64[6, 8] next to f64[] on (tp=2): R. Make it a "
        "DTensor with distribute_tensor or from_local, or call the operator on "
        "local tensors (to_local()). If the plain tensor is the same on every "
        "rank, implicit_replication() accepts it as replicated, and "
        "distribute_module distributes the tensors of a module. To clip plain "
        "and distributed gradients together, call dtensor::clip_grad_norm_ "
        "(C++), or clip inside implicit_replication() (Python).");
  });
}

// LBFGS concatenates all parameters into one vector.
void train_with_lbfgs(Mlp& model) {
  torch::optim::LBFGS lbfgs(
      model->parameters(), torch::optim::LBFGSOptions(1e-2).max_iter(4));
  const auto x = uniform({4, 6}, 3);
  for (int step = 0; step < 2; ++step) {
    lbfgs.step([&] {
      lbfgs.zero_grad();
      auto loss = model(x).square().sum();
      loss.backward();
      return loss;
    });
  }
}

TEST(TrainingTest, OptimizersOverOneVectorOfAllParameters) {
  on_two_ranks([](const DeviceMesh& mesh) {
    for (const auto hidden : {8, 7}) {
      auto plain = filled(Mlp(6, hidden));
      auto mine = filled(Mlp(6, hidden));
      parallelize_module(*mine, mesh, mlp_plan());
      const auto vector_of = [](const Mlp& model) {
        return torch::nn::utils::parameters_to_vector(model->parameters());
      };
      expect_close(vector_of(mine), vector_of(plain), "vector");
      train_with_lbfgs(plain);
      train_with_lbfgs(mine);
      expect_same_parameters(*mine, *plain);
    }
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
