// SPDX-License-Identifier: BSD-3-Clause
// Shared weights, tied by tie_weights(). They are rejected if an assignment has
// changed only the member.
#include <dtensor/parallel/distribute_module.h>
#include <dtensor/parallel/gradients.h>
#include <dtensor/parallel/sequence_parallel.h>
#include <dtensor/parallel/state_dict.h>
#include <dtensor/parallel/tie_weights.h>
#include <tests/parallel/modules.h>

#include <functional>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

struct LanguageModelImpl : torch::nn::Module {
  LanguageModelImpl()
      : embedding(register_module("embedding", torch::nn::Embedding(11, 6))),
        head(register_module(
            "head",
            torch::nn::Linear(torch::nn::LinearOptions(6, 11).bias(false)))) {}
  at::Tensor forward(const at::Tensor& tokens) {
    return head(torch::tanh(embedding(tokens)));
  }
  torch::nn::Embedding embedding;
  torch::nn::Linear head;
};
TORCH_MODULE(LanguageModel);

at::Tensor tokens() {
  return at::arange(12, at::kLong).remainder(11).view({2, 6});
}

TEST(TieWeights, RegistersTheTensorThatForwardReads) {
  LanguageModel model;
  const auto shared = model->embedding->weight;
  tie_weights(*model->head, *model->embedding);
  EXPECT_TRUE(model->head->weight.is_same(shared));
  const auto registered = model->named_parameters();
  EXPECT_TRUE(registered["head.weight"].is_same(shared));
  EXPECT_TRUE(registered["embedding.weight"].is_same(shared));
  EXPECT_EQ(model->parameters().size(), 2);
  const auto unique = unique_parameters(*model);
  ASSERT_EQ(unique.size(), 1);
  EXPECT_TRUE(unique[0].is_same(shared));
}

// Tying before or after styling trains like a plain program with one weight,
// over three AdamW steps.
TEST(TieWeights, TrainsAsOneWeight) {
  auto weight = uniform({11, 6}, 1).requires_grad_(true);
  torch::optim::AdamW reference({weight}, 1e-2);
  for (int step = 0; step < 3; ++step) {
    reference.zero_grad();
    const auto hidden = torch::tanh(torch::embedding(weight, tokens()));
    hidden.matmul(weight.t()).square().sum().backward();
    reference.step();
  }
  for (const bool is_tied_first : {true, false}) {
    run_ranks(2, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
      auto model = filled(LanguageModel());
      const auto tie = [&] { tie_weights(*model->head, *model->embedding); };
      if (is_tied_first) {
        tie();
      }
      parallelize_module(
          *model,
          mesh,
          {{"embedding", RowwiseParallel()},
           {"head", ColwiseParallel({.output_layouts = Replicate()})}});
      if (!is_tied_first) {
        tie();
      }
      torch::optim::AdamW adamw(unique_parameters(*model), 1e-2);
      for (int step = 0; step < 3; ++step) {
        adamw.zero_grad();
        model(tokens()).square().sum().backward();
        adamw.step();
      }
      const auto state =
          get_model_state_dict(*model, {.full_state_dict = true});
      expect_close(state["embedding.weight"], weight, "embedding", 1e-10);
      expect_close(state["head.weight"], weight, "head", 1e-10);
      const auto moments = get_optimizer_state_dict(*model, adamw);
      EXPECT_TRUE(moments.contains("state.embedding.weight.exp_avg"));
      EXPECT_FALSE(moments.contains("state.head.weight.exp_avg"));
    });
  }
}

// Modules that are tied after styling need the same style.
TEST(TieWeights, AfterStylingChecksStylesOfAllKinds) {
  namespace nn = torch::nn;
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto expect = [&](const auto& make,
                            const auto& style,
                            const auto& other,
                            const at::Tensor& x) {
      for (const bool is_same : {true, false}) {
        auto first = filled(make());
        auto second = filled(make());
        nn::Sequential model(first, second);
        parallelize_module(
            *model, mesh, {{"0", style}, {"1", is_same ? style : other}});
        tie_weights(*first, *second);
        EXPECT_EQ(
            error_of([&] { first->forward(x); }),
            is_same ? ""
                    : "[boundary] module \"0\" was tied to module \"1\", "
                      "which is styled differently. Give both the same style.")
            << first->name();
      }
    };
    const auto expect_of_product = [&](const auto& make, const at::Tensor& x) {
      expect(
          make,
          ColwiseParallel(),
          ColwiseParallel({.output_layouts = Replicate()}),
          x);
    };
    expect_of_product([] { return nn::Linear(4, 4); }, uniform({2, 4}, 1));
    expect_of_product(
        [] { return nn::Conv1d(4, 4, 3); }, uniform({2, 4, 5}, 1));
    expect_of_product(
        [] { return nn::ConvTranspose1d(4, 4, 3); }, uniform({2, 4, 5}, 1));
    expect_of_product(
        [] { return nn::ConvTranspose2d(4, 4, 3); }, uniform({2, 4, 5, 5}, 1));
    expect_of_product(
        [] { return nn::ConvTranspose3d(4, 4, 3); },
        uniform({2, 4, 3, 3, 3}, 1));
    expect(
        [] { return nn::LayerNorm(nn::LayerNormOptions({6})); },
        SequenceParallel(),
        SequenceParallel({.sequence_dim = 0}),
        uniform({2, 4, 6}, 1));
  });
}

TEST(TieWeights, OfModulesThatAreNotAlike) {
  using torch::nn::LinearOptions;
  torch::nn::Linear linear(LinearOptions(6, 11));
  EXPECT_EQ(
      error_of([&] { tie_weights(*linear, *torch::nn::Embedding(11, 5)); }),
      "[tie_weights] the parameter is f32[11, 6], but the parameter to share "
      "is f32[11, 5]. Tie parameters of the same shape.");
  EXPECT_EQ(
      error_of([&] { tie_weights(*linear, *torch::nn::ReLU()); }),
      "[tie_weights] the torch::nn::ReLUImpl has no parameter \"weight\". "
      "Register it first.");
  EXPECT_EQ(
      error_of([&] {
        tie_weights(
            *linear,
            *torch::nn::LayerNorm(
                torch::nn::LayerNormOptions({6}).elementwise_affine(false)));
      }),
      "[tie_weights] the weight of the torch::nn::LayerNormImpl is undefined. "
      "Share a weight that is defined.");
}

struct ScaleImpl : torch::nn::Module {
  at::Tensor factors = register_parameter("factors", torch::ones({3}));
};

TEST(TieParameter, OfAModuleOfTheProgramTakesTheMember) {
  ScaleImpl one;
  ScaleImpl other;
  EXPECT_EQ(
      error_of([&] { tie_parameter(other, "factors", one.factors); }),
      "[tie_parameter] unknown member for parameter \"factors\" of the " +
          other.name() +
          ", which is not a module of torch::nn. Pass it: "
          "tie_parameter(module, \"factors\", module.factors, parameter).");
  tie_parameter(other, "factors", other.factors, one.factors);
  EXPECT_TRUE(other.factors.is_same(one.factors));
  EXPECT_TRUE(other.parameters()[0].is_same(one.factors));
}

TEST(TieParameter, AnUndefinedOneRemovesABias) {
  torch::nn::Linear linear(6, 11);
  tie_parameter(*linear, "bias", {});
  EXPECT_FALSE(linear->bias.defined());
  EXPECT_EQ(linear->parameters().size(), 1);
  const auto x = at::ones({2, 6});
  EXPECT_TRUE(at::equal(linear(x), at::linear(x, linear->weight)));
}

// Calls `call` with a model whose head was tied by an assignment.
void expect_refused(
    const std::string& where,
    const std::function<void(LanguageModel&, const DeviceMesh&)>& call) {
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    LanguageModel model;
    model->head->weight = model->embedding->weight;
    EXPECT_EQ(
        error_of([&] { call(model, mesh); }),
        "[" + where +
            "] the weight of module \"head\" of type torch::nn::LinearImpl is "
            "not "
            "the parameter that is registered under that name, as after an "
            "assignment to the member. Set it with tie_weights() or "
            "tie_parameter(), which register it too.");
    EXPECT_FALSE(is_dtensor(model->embedding->weight));
  });
}

TEST(AMemberThatIsNotRegistered, IsRefusedByFunctionsThatTakeAModule) {
  expect_refused("parallelize_module", [](auto& model, const auto& mesh) {
    parallelize_module(*model, mesh, {{"embedding", RowwiseParallel()}});
  });
  expect_refused("distribute_module", [](auto& model, const auto& mesh) {
    distribute_module(*model, mesh);
  });
  expect_refused("get_model_state_dict", [](auto& model, const auto&) {
    get_model_state_dict(*model);
  });
  expect_refused("set_model_state_dict", [](auto& model, const auto&) {
    set_model_state_dict(*model, StateDict(), {.strict = false});
  });
  expect_refused("get_optimizer_state_dict", [](auto& model, const auto&) {
    torch::optim::AdamW adamw(model->parameters());
    get_optimizer_state_dict(*model, adamw);
  });
}

// The check covers every torch::nn module type with a public member for a
// parameter.
TEST(AMemberThatIsNotRegistered, IsFoundInModulesOfAllKinds) {
  namespace nn = torch::nn;
  const auto expect = [](auto module, at::Tensor& member, const char* name) {
    const auto before = member;
    EXPECT_EQ(error_of([&] { get_model_state_dict(*module); }), "");
    member = torch::ones({2}).requires_grad_(before.requires_grad());
    const auto text = error_of([&] { get_model_state_dict(*module); });
    EXPECT_EQ(
        text.find(
            std::string("[get_model_state_dict] the ") + name + " of the"),
        0)
        << module->name() << ": " << text;
    member = before;
  };
  const auto weight = [&](auto module) {
    expect(module, module->weight, "weight");
  };
  const auto both = [&](auto module) {
    expect(module, module->weight, "weight");
    expect(module, module->bias, "bias");
  };
  const auto norm = [&](auto module) {
    both(module);
    expect(module, module->running_mean, "running_mean");
    expect(module, module->running_var, "running_var");
    expect(module, module->num_batches_tracked, "num_batches_tracked");
  };
  const auto cell = [&](auto module) {
    expect(module, module->weight_ih, "weight_ih");
    expect(module, module->weight_hh, "weight_hh");
    expect(module, module->bias_ih, "bias_ih");
    expect(module, module->bias_hh, "bias_hh");
  };
  both(nn::Linear(3, 4));
  both(nn::Bilinear(3, 4, 5));
  weight(nn::Embedding(3, 4));
  weight(nn::EmbeddingBag(3, 4));
  weight(nn::PReLU());
  both(nn::LayerNorm(nn::LayerNormOptions({3})));
  both(nn::GroupNorm(2, 4));
  both(nn::Conv1d(2, 3, 1));
  both(nn::Conv2d(2, 3, 1));
  both(nn::Conv3d(2, 3, 1));
  both(nn::ConvTranspose1d(2, 3, 1));
  both(nn::ConvTranspose2d(2, 3, 1));
  both(nn::ConvTranspose3d(2, 3, 1));
  norm(nn::BatchNorm1d(3));
  norm(nn::BatchNorm2d(3));
  norm(nn::BatchNorm3d(3));
  const auto tracked = [](auto options) {
    return options.affine(true).track_running_stats(true);
  };
  norm(nn::InstanceNorm1d(tracked(nn::InstanceNorm1dOptions(3))));
  norm(nn::InstanceNorm2d(tracked(nn::InstanceNorm2dOptions(3))));
  norm(nn::InstanceNorm3d(tracked(nn::InstanceNorm3dOptions(3))));
  cell(nn::RNNCell(3, 4));
  cell(nn::LSTMCell(3, 4));
  cell(nn::GRUCell(3, 4));
  nn::MultiheadAttention attention(4, 2);
  expect(attention, attention->in_proj_weight, "in_proj_weight");
  expect(attention, attention->in_proj_bias, "in_proj_bias");
}

TEST(AMemberThatIsNotRegistered, MayBeABiasThatWasTakenAway) {
  torch::nn::Linear linear(3, 4);
  linear->bias = at::Tensor();
  EXPECT_NE(
      error_of([&] {
        get_model_state_dict(*linear);
      }).find("the bias of the root module of type torch::nn::LinearImpl"),
      std::string::npos);
}

TEST(AnOptimizer, ThatHasASharedParameterTwiceIsRefused) {
  LanguageModel model;
  tie_weights(*model->head, *model->embedding);
  torch::optim::SGD sgd(model->parameters(), 0.1);
  EXPECT_EQ(
      error_of([&] { get_optimizer_state_dict(*model, sgd); }),
      "[get_optimizer_state_dict] the optimizer has embedding.weight twice, "
      "because several modules share it, and would step it twice. Make the "
      "optimizer from unique_parameters(module).");
}

TEST(ClipGradNorm, CountsASharedParameterOnce) {
  LanguageModel model;
  tie_weights(*model->head, *model->embedding);
  const auto& weight = model->embedding->weight;
  weight.mutable_grad() = at::full({11, 6}, 2.0);
  EXPECT_NEAR(
      clip_grad_norm_(model->parameters(), 1.0), 2 * std::sqrt(66.0), 1e-5);
  EXPECT_NEAR(weight.grad().norm().item<double>(), 1.0, 1e-5);
}

TEST(SetModelStateDict, TakesASharedTensorUnderAnyOfItsNames) {
  for (const std::string name : {"embedding.weight", "head.weight"}) {
    LanguageModel model;
    tie_weights(*model->head, *model->embedding);
    StateDict state;
    state.insert(name, at::full({11, 6}, 3.0));
    set_model_state_dict(*model, state);
    EXPECT_TRUE(at::equal(model->head->weight, at::full({11, 6}, 3.0)));
  }
  LanguageModel untied;
  StateDict state;
  state.insert("embedding.weight", at::full({11, 6}, 3.0));
  EXPECT_NE(
      error_of([&] {
        set_model_state_dict(*untied, state);
      }).find("missing: head.weight"),
      std::string::npos);
}

} // namespace TEST_SOURCE
} // namespace dtensor
