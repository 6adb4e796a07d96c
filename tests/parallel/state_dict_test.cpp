// SPDX-License-Identifier: BSD-3-Clause
// State dictionaries between models in any layout, plain ones among them.
#include <dtensor/parallel/state_dict.h>
#include <tests/parallel/modules.h>

#include <sstream>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;

std::vector<std::string> keys(const StateDict& state) {
  return state.keys();
}

Mlp parallel(const DeviceMesh& mesh) {
  auto mlp = filled(Mlp(6, 7));
  parallelize_module(*mlp, mesh, mlp_plan());
  return mlp;
}

TEST(ModelStateDict, HasPartsThatShareTheMemory) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto mlp = parallel(mesh);
    const auto state = get_model_state_dict(*mlp);
    EXPECT_EQ(
        keys(state),
        (std::vector<std::string>{
            "w1.weight", "w1.bias", "w2.weight", "w2.bias"}));
    EXPECT_EQ(layout_of(state["w1.weight"]), Shard(0));
    const torch::NoGradGuard no_grad;
    mlp->w1->weight.fill_(3);
    EXPECT_TRUE(at::equal(full(state["w1.weight"]), at::full({7, 6}, 3.)));
  });
}

TEST(ModelStateDict, GoesBetweenAnyLayouts) {
  for (const int64_t ranks : {1, 2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      const auto truth = filled(Mlp(6, 7));
      auto source = parallel(mesh);
      for (const bool is_full : {false, true}) {
        const auto state =
            get_model_state_dict(*source, {.full_state_dict = is_full});
        EXPECT_EQ(is_dtensor(state["w1.weight"]), !is_full);
        Mlp plain(6, 7);
        plain->to(torch::kDouble);
        set_model_state_dict(*plain, state);
        expect_same_parameters(*plain, *truth);
        auto turned = filled(Mlp(6, 7), /*seed=*/90);
        parallelize_module(
            *turned,
            mesh,
            {{"w1", RowwiseParallel({.input_layouts = Replicate()})},
             {"w2", ColwiseParallel({.output_layouts = Replicate()})}});
        set_model_state_dict(*turned, state);
        expect_same_parameters(*turned, *truth);
        EXPECT_EQ(layout_of(turned->w1->weight), Shard(1));
      }
    });
  }
}

TEST(ModelStateDict, LocalPartsComeBackToTheirRanks) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3}, {"tp"});
    const auto truth = filled(Mlp(6, 7));
    const auto state =
        get_model_state_dict(*parallel(mesh), {.local_parts = true});
    EXPECT_FALSE(is_dtensor(state["w1.weight"]));
    // What a file of this rank holds.
    std::stringstream file;
    torch::save(state.values(), file);
    std::vector<at::Tensor> values;
    torch::load(values, file);
    StateDict read;
    for (size_t i = 0; i < values.size(); ++i) {
      read.insert(state.keys()[i], values[i]);
    }
    auto other = filled(Mlp(6, 7), /*seed=*/90);
    parallelize_module(*other, mesh, mlp_plan());
    set_model_state_dict(*other, read);
    expect_same_parameters(*other, *truth);
  });
}

TEST(ModelStateDict, OfRankZeroAlone) {
  run_ranks(3, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {3}, {"tp"});
    const auto truth = filled(Mlp(6, 7));
    const auto state = get_model_state_dict(
        *parallel(mesh), {.full_state_dict = true, .cpu_offload = true});
    EXPECT_EQ(state.size(), rank == 0 ? 4U : 0U);
    auto other = filled(Mlp(6, 7), /*seed=*/90);
    parallelize_module(*other, mesh, mlp_plan());
    set_model_state_dict(*other, state, {.broadcast_from_rank0 = true});
    expect_same_parameters(*other, *truth);
  });
}

TEST(ModelStateDict, LeavesOutFrozenParameters) {
  Mlp mlp(2, 2);
  mlp->w1->weight.set_requires_grad(false);
  EXPECT_EQ(
      keys(get_model_state_dict(*mlp, {.ignore_frozen_params = true})),
      (std::vector<std::string>{"w1.bias", "w2.weight", "w2.bias"}));
}

TEST(ModelStateDict, SaysAllThatIsWrongAndChangesNothing) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto mlp = parallel(mesh);
    auto state = get_model_state_dict(*mlp, {.full_state_dict = true});
    state.erase("w1.bias");
    state["w2.weight"] = at::zeros({2, 2}, at::kDouble);
    state.insert("w3.weight", at::zeros({1}));
    state["w1.weight"] = at::zeros({7, 6}, at::kDouble);
    EXPECT_EQ(
        error_of([&] { set_model_state_dict(*mlp, state); }),
        "[set_model_state_dict] missing: w1.bias; unknown: w3.weight; of "
        "another shape: w2.weight is f64[2, 2] for f64[6, 7] on (tp=2): S(1). "
        "Pass the dictionary of such a model, or strict = false for one with "
        "other names.");
    expect_same_parameters(*mlp, *filled(Mlp(6, 7)));
    state.erase("w2.weight");
    set_model_state_dict(*mlp, state, {.strict = false});
    EXPECT_EQ(full(mlp->w1->weight).abs().sum().item<double>(), 0);
    EXPECT_EQ(
        error_of([&] {
          get_model_state_dict(
              *mlp, {.full_state_dict = true, .local_parts = true});
        }),
        "[get_model_state_dict] full_state_dict and local_parts exclude each "
        "other. Choose one.");
  });
}

// Three steps in one go are two steps, another model and layout, and one more.
template <class Optimizer, class Options>
void expect_resumes(const Options& options, const std::string& what) {
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto steps =
        [](Mlp& mlp, torch::optim::Optimizer& opt, int from, int to) {
          for (int i = from; i < to; ++i) {
            opt.zero_grad();
            mlp(uniform({4, 6}, 20 + static_cast<uint64_t>(i)))
                .square()
                .sum()
                .backward();
            opt.step();
          }
        };
    auto truth = filled(Mlp(6, 7));
    Optimizer plain(truth->parameters(), options);
    steps(truth, plain, 0, 3);

    auto first = parallel(mesh);
    Optimizer before(first->parameters(), options);
    steps(first, before, 0, 2);
    for (const bool is_full : {false, true}) {
      const StateDictOptions how{.full_state_dict = is_full};
      auto second = filled(Mlp(6, 7), /*seed=*/70);
      parallelize_module(
          *second,
          mesh,
          {{"w1", RowwiseParallel({.input_layouts = Replicate()})},
           {"w2", ColwiseParallel({.output_layouts = Replicate()})}});
      Optimizer after(second->parameters(), Options(77.));
      set_model_state_dict(*second, get_model_state_dict(*first, how));
      set_optimizer_state_dict(
          *second, after, get_optimizer_state_dict(*first, before, how));
      steps(second, after, 2, 3);
      for (const auto& item : second->named_parameters()) {
        expect_close(
            item.value(),
            truth->named_parameters()[item.key()],
            what + " " + item.key(),
            1e-11);
      }
    }
  });
}

TEST(OptimizerStateDict, TrainingGoesOnInAnotherLayout) {
  using namespace torch::optim;
  expect_resumes<AdamW>(AdamWOptions(1e-2), "AdamW");
  expect_resumes<Adam>(AdamOptions(1e-2), "Adam");
  expect_resumes<Adagrad>(AdagradOptions(1e-2), "Adagrad");
  expect_resumes<RMSprop>(RMSpropOptions(1e-2), "RMSprop");
}

TEST(OptimizerStateDict, HasPythonsNames) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto mlp = parallel(mesh);
    torch::optim::SGD sgd(
        mlp->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
    EXPECT_EQ(
        keys(get_optimizer_state_dict(*mlp, sgd))[0],
        "param_groups.w1.weight.lr");
    mlp(uniform({2, 6}, 1)).sum().backward();
    sgd.step();
    const auto state = get_optimizer_state_dict(*mlp, sgd);
    EXPECT_EQ(state["param_groups.w2.bias.lr"].item<double>(), 0.5);
    EXPECT_EQ(layout_of(state["state.w1.weight.momentum_buffer"]), Shard(0));
  });
}

TEST(OptimizerStateDict, SaysWhatIsWrong) {
  Mlp mlp(2, 2);
  Mlp other(2, 2);
  torch::optim::SGD sgd(mlp->parameters(), 0.1);
  EXPECT_EQ(
      error_of([&] { get_optimizer_state_dict(*other, sgd); }),
      "[get_optimizer_state_dict] the optimizer has a parameter, f32[2, 2], "
      "that is none of the module's. Pass the module that it was made for.");
  torch::optim::LBFGS lbfgs(mlp->parameters());
  EXPECT_EQ(
      error_of([&] { get_optimizer_state_dict(*mlp, lbfgs); }),
      "[get_optimizer_state_dict] what this optimizer keeps is not known. It "
      "does SGD, Adam, AdamW, Adagrad and RMSprop.");
  StateDict state;
  state.insert("state.w1.weight.momentum_buffer", at::zeros({3}));
  state.insert("state.w9.weight.momentum_buffer", at::zeros({3}));
  EXPECT_EQ(
      error_of([&] { set_optimizer_state_dict(*mlp, sgd, state); }),
      "[set_optimizer_state_dict] unknown: state.w9.weight.momentum_buffer; of "
      "another shape: state.w1.weight.momentum_buffer is f32[3] for f32[2, 2]. "
      "Pass the dictionary of such a model, or strict = false for one with "
      "other names.");
}

} // namespace TEST_SOURCE
} // namespace dtensor
