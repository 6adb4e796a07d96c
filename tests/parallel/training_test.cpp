// SPDX-License-Identifier: BSD-3-Clause
// Parallel modules in use: optimizers, tied and frozen parameters, other
// dtypes, autocast, and forward without gradients.
#include <tests/parallel/modules.h>

#include <ATen/autocast_mode.h>

namespace dtensor {
namespace {

using namespace dtensor::testing;

template <class Fn>
void on_two_ranks(const Fn& fn) {
  run_ranks(2, [&] { fn(init_device_mesh(at::kCPU, {2}, {"tp"})); });
}

void expect_same_parameters(
    const torch::nn::Module& mine,
    const torch::nn::Module& plain) {
  const auto truth = plain.named_parameters();
  for (const auto& item : mine.named_parameters()) {
    expect_close(item.value(), truth[item.key()], item.key(), 1e-10);
  }
}

template <class Model>
void train(Model& model, torch::optim::Optimizer& optimizer) {
  for (uint64_t step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    model->forward(uniform({4, 6}, step)).square().sum().backward();
    optimizer.step();
  }
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
    head->weight = embedding->weight;
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

TEST(TrainingTest, TiedLinearsStayTied) {
  on_two_ranks([](const DeviceMesh& mesh) {
    const auto make = [] {
      auto model = filled(Mlp(6, 6));
      model->w2->weight = model->w1->weight;
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
    // A thawed bias gets its gradient in its own layout, too.
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

} // namespace
} // namespace dtensor
