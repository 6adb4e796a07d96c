// SPDX-License-Identifier: BSD-3-Clause
// State dictionaries between models in any layouts, including plain ones.
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

TEST(ModelStateDict, HasShardsThatShareMemory) {
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

TEST(ModelStateDict, LocalShardsReturnToTheirRanks) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3}, {"tp"});
    const auto truth = filled(Mlp(6, 7));
    const auto state =
        get_model_state_dict(*parallel(mesh), {.local_shards = true});
    EXPECT_FALSE(is_dtensor(state["w1.weight"]));
    // Contents of one rank's file.
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

TEST(ModelStateDict, FailsOnAllRanksWithoutValuesOfRankZero) {
  run_ranks(2, [](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto mlp = parallel(mesh);
    auto shards = get_model_state_dict(*mlp);
    const auto whole = get_model_state_dict(*mlp, {.full_state_dict = true});
    shards["w1.bias"] = at::Tensor();
    shards["w2.weight"] = whole["w2.weight"];
    EXPECT_EQ(
        error_of([&] {
          set_model_state_dict(
              *mlp,
              rank == 0 ? shards : StateDict(),
              {.broadcast_from_rank0 = true});
        }),
        "[set_model_state_dict] rank 0 lacks values to broadcast: w1.weight is "
        "f64[7, 6] on (tp=2): S(0), w1.bias is undefined. Pass a state dict "
        "made with full_state_dict = true.");
    set_model_state_dict(
        *mlp, rank == 0 ? whole : StateDict(), {.broadcast_from_rank0 = true});
    expect_same_parameters(*mlp, *filled(Mlp(6, 7)));
  });
}

TEST(ModelStateDict, LeavesOutFrozenParameters) {
  Mlp mlp(2, 2);
  mlp->w1->weight.set_requires_grad(false);
  EXPECT_EQ(
      keys(get_model_state_dict(*mlp, {.ignore_frozen_params = true})),
      (std::vector<std::string>{"w1.bias", "w2.weight", "w2.bias"}));
}

TEST(ModelStateDict, ReportsAllProblemsAndChangesNothing) {
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
        "Pass a state dict of the same architecture, or strict = false to "
        "allow different names.");
    expect_same_parameters(*mlp, *filled(Mlp(6, 7)));
    state.erase("w2.weight");
    set_model_state_dict(*mlp, state, {.strict = false});
    EXPECT_EQ(full(mlp->w1->weight).abs().sum().item<double>(), 0);
    EXPECT_EQ(
        error_of([&] {
          get_model_state_dict(
              *mlp, {.full_state_dict = true, .local_shards = true});
        }),
        "[get_model_state_dict] full_state_dict and local_shards exclude each "
        "other. Choose one.");
  });
}

// Three steps equal two steps, a load into another model and layout, and one
// more step.
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

// The names are those of Python's param_groups, except options that select an
// implementation.
template <class Optimizer, class Options>
void expect_options(
    const Options& given,
    const Options& others,
    const std::vector<std::string>& names) {
  Mlp mlp(2, 2);
  const std::vector<at::Tensor> weights = {mlp->w1->weight, mlp->w2->weight};
  const std::vector<at::Tensor> biases = {mlp->w1->bias, mlp->w2->bias};
  const auto groups = [&](const Options& first, const Options& second) {
    std::vector<torch::optim::OptimizerParamGroup> all;
    all.emplace_back(weights, std::make_unique<Options>(first));
    all.emplace_back(biases, std::make_unique<Options>(second));
    return all;
  };
  Optimizer from(groups(given, others), Options(9.));
  Optimizer to(groups(Options(7.), Options(8.)), Options(9.));
  const auto state = get_optimizer_state_dict(*mlp, from);
  std::vector<std::string> found;
  for (const auto& key : keys(state)) {
    const std::string begin = "param_groups.w1.weight.";
    if (key.starts_with(begin)) {
      found.push_back(key.substr(begin.size()));
    }
  }
  EXPECT_EQ(found, names);
  const auto options = [](Optimizer& of, size_t group) -> const Options& {
    return static_cast<const Options&>(of.param_groups()[group].options());
  };
  EXPECT_FALSE(options(to, 0) == given);
  set_optimizer_state_dict(*mlp, to, state);
  EXPECT_TRUE(options(to, 0) == given);
  EXPECT_TRUE(options(to, 1) == others);
}

TEST(OptimizerStateDict, HasAllOptionsByPythonsNames) {
  using namespace torch::optim;
  const std::vector<std::string> adam = {
      "lr", "betas", "eps", "weight_decay", "amsgrad"};
  expect_options<Adam>(
      AdamOptions(0.1)
          .betas({0.3, 0.4})
          .eps(0.5)
          .weight_decay(0.6)
          .amsgrad(true),
      AdamOptions(0.2).betas({0.35, 0.45}),
      adam);
  expect_options<AdamW>(
      AdamWOptions(0.1)
          .betas({0.3, 0.4})
          .eps(0.5)
          .weight_decay(0.6)
          .amsgrad(true),
      AdamWOptions(0.2).betas({0.35, 0.45}),
      adam);
  expect_options<SGD>(
      SGDOptions(0.1).momentum(0.2).weight_decay(0.4).nesterov(true),
      SGDOptions(0.2).momentum(0.2).dampening(0.3),
      {"lr", "momentum", "dampening", "weight_decay", "nesterov"});
  expect_options<Adagrad>(
      AdagradOptions(0.1)
          .lr_decay(0.2)
          .weight_decay(0.3)
          .initial_accumulator_value(0.4)
          .eps(0.5),
      AdagradOptions(0.2),
      {"lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"});
  expect_options<RMSprop>(
      RMSpropOptions(0.1)
          .alpha(0.2)
          .eps(0.3)
          .weight_decay(0.4)
          .momentum(0.5)
          .centered(true),
      RMSpropOptions(0.2),
      {"lr", "alpha", "eps", "weight_decay", "momentum", "centered"});
}

// Different options within a group are an error, and no option is set.
TEST(OptimizerStateDict, NamesOptionsOfAGroupThatDiffer) {
  Mlp mlp(2, 2);
  torch::optim::Adam adam(mlp->parameters(), 0.1);
  auto state = get_optimizer_state_dict(*mlp, adam);
  EXPECT_EQ(state["param_groups.w1.bias.betas"].sizes(), at::IntArrayRef({2}));
  EXPECT_EQ(state["param_groups.w1.bias.amsgrad"].scalar_type(), at::kBool);
  for (const auto* name : {"w1.weight", "w1.bias", "w2.weight", "w2.bias"}) {
    state["param_groups." + std::string(name) + ".lr"].fill_(0.5);
  }
  state["param_groups.w2.bias.betas"][1].fill_(0.5);
  EXPECT_EQ(
      error_of([&] { set_optimizer_state_dict(*mlp, adam, state); }),
      "[set_optimizer_state_dict] parameters of one group have different "
      "options: param_groups.w1.weight.betas is 0.9, 0.999, "
      "param_groups.w2.bias.betas is 0.9, 0.5. Put them into separate groups, "
      "as in the optimizer that saved the state.");
  EXPECT_EQ(adam.param_groups()[0].options().get_lr(), 0.1);
  StateDict odd;
  odd.insert("param_groups.w1.weight.betas", at::zeros({3}));
  odd.insert("state.w2.weight.step", at::zeros({2}, at::kLong));
  EXPECT_EQ(
      error_of([&] { set_optimizer_state_dict(*mlp, adam, odd); }),
      "[set_optimizer_state_dict] missing: state.w2.weight.exp_avg, "
      "state.w2.weight.exp_avg_sq; of another shape: "
      "param_groups.w1.weight.betas is f32[3] for f64[2], "
      "state.w2.weight.step is i64[2] for i64[]. Pass a state dict of the "
      "same architecture, or strict = false to allow different names.");
}

// A parameter has either its complete state or none.
TEST(OptimizerStateDict, NeedsCompleteStateOfAParameter) {
  auto mlp = filled(Mlp(6, 7));
  torch::optim::Adam adam(mlp->parameters(), 0.1);
  mlp(uniform({4, 6}, 3)).square().mean().backward();
  adam.step();
  auto state = get_optimizer_state_dict(*mlp, adam);
  for (const auto* field : {"step", "exp_avg", "exp_avg_sq"}) {
    state.erase("state.w2.bias." + std::string(field));
  }
  auto some = state;
  some.erase("state.w1.bias.step");
  some.erase("state.w2.weight.exp_avg");
  torch::optim::Adam other(mlp->parameters(), 0.1);
  EXPECT_EQ(
      error_of([&] { set_optimizer_state_dict(*mlp, other, some); }),
      "[set_optimizer_state_dict] missing: state.w1.bias.step, "
      "state.w2.weight.exp_avg. Pass a state dict of the same architecture, or "
      "strict = false to allow different names.");
  EXPECT_TRUE(other.state().empty());
  set_optimizer_state_dict(*mlp, other, some, {.strict = false});
  set_optimizer_state_dict(*mlp, other, state);
  EXPECT_EQ(other.state().size(), 3U);
}

// LBFGS treats all parameters as one vector.
double lbfgs_step(Mlp& mlp, torch::optim::LBFGS& optimizer) {
  const auto loss = optimizer.step([&] {
    optimizer.zero_grad();
    auto value = mlp(uniform({4, 6}, 3)).square().mean();
    value.backward();
    return value.detach();
  });
  return full(loss).item<double>();
}

torch::optim::LBFGSOptions lbfgs_options() {
  return torch::optim::LBFGSOptions(0.1).max_iter(3).history_size(2);
}

TEST(OptimizerStateDict, HoldsVectorsOfAllParameters) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto plain = filled(Mlp(6, 7));
    torch::optim::LBFGS alone(plain->parameters(), lbfgs_options());
    auto mlp = parallel(mesh);
    torch::optim::LBFGS optimizer(mlp->parameters(), lbfgs_options());
    for (int step = 0; step < 2; ++step) {
      lbfgs_step(plain, alone);
      lbfgs_step(mlp, optimizer);
    }
    for (const bool is_full : {false, true}) {
      const StateDictOptions options{.full_state_dict = is_full};
      const auto state = get_optimizer_state_dict(*mlp, optimizer, options);
      const auto truth = get_optimizer_state_dict(*plain, alone);
      EXPECT_EQ(keys(state), keys(truth));
      EXPECT_NE(state.find("state.w1.weight.old_dirs.1"), nullptr);
      EXPECT_EQ(state.find("state.w1.weight.old_dirs.2"), nullptr);
      for (const auto& item : truth) {
        expect_close(state[item.key()], item.value(), item.key(), 1e-10);
      }
      // Loads to one rank, and from there to two ranks that initially have
      // other options.
      auto there = filled(Mlp(6, 7));
      set_model_state_dict(*there, get_model_state_dict(*mlp));
      torch::optim::LBFGS rest(there->parameters());
      set_optimizer_state_dict(*there, rest, state);
      auto back = parallel(mesh);
      set_model_state_dict(*back, get_model_state_dict(*there));
      torch::optim::LBFGS last(
          back->parameters(),
          torch::optim::LBFGSOptions(1).line_search_fn("strong_wolfe"));
      set_optimizer_state_dict(
          *back, last, get_optimizer_state_dict(*there, rest));
      const auto& group = static_cast<torch::optim::LBFGSOptions&>(
          last.param_groups()[0].options());
      EXPECT_TRUE(
          group ==
          static_cast<torch::optim::LBFGSOptions&>(
              alone.param_groups()[0].options()));
      auto beside = filled(Mlp(6, 7));
      set_model_state_dict(*beside, get_model_state_dict(*plain));
      torch::optim::LBFGS truth_of_it(beside->parameters());
      set_optimizer_state_dict(*beside, truth_of_it, truth);
      for (int step = 0; step < 2; ++step) {
        const auto loss = lbfgs_step(beside, truth_of_it);
        EXPECT_NEAR(lbfgs_step(there, rest), loss, 1e-9);
        EXPECT_NEAR(lbfgs_step(back, last), loss, 1e-9);
      }
      expect_same_parameters(*there, *beside);
      expect_same_parameters(*back, *beside);
    }
  });
}

TEST(OptimizerStateDict, NeedsCompleteListsOfVectors) {
  auto mlp = filled(Mlp(6, 7));
  torch::optim::LBFGS optimizer(mlp->parameters(), lbfgs_options());
  lbfgs_step(mlp, optimizer);
  lbfgs_step(mlp, optimizer);
  const auto whole = get_optimizer_state_dict(*mlp, optimizer);
  StateDict some;
  for (const auto& item : whole) {
    if (item.key() == "state.w1.weight.d") {
      some.insert(item.key(), at::zeros({3}));
    } else if (item.key() != "state.w1.weight.ro.1") {
      some.insert(item.key(), item.value());
    }
  }
  some.insert("state.w2.bias.d", at::zeros({97}));
  EXPECT_EQ(
      error_of([&] { set_optimizer_state_dict(*mlp, optimizer, some); }),
      "[set_optimizer_state_dict] missing: state.w1.weight.ro.1; unknown: "
      "state.w2.bias.d; of another shape: state.w1.weight.d is f32[3] for "
      "f64[97]. Pass a state dict of the same architecture, or strict = false "
      "to allow different names.");
}

TEST(OptimizerStateDict, ReportsProblems) {
  Mlp mlp(2, 2);
  Mlp other(2, 2);
  torch::optim::SGD sgd(mlp->parameters(), 0.1);
  EXPECT_EQ(
      error_of([&] { get_optimizer_state_dict(*other, sgd); }),
      "[get_optimizer_state_dict] the optimizer has a parameter, f32[2, 2], "
      "that is not in the module. Pass the module that the optimizer was made "
      "for.");
  struct Unknown : torch::optim::Optimizer {
    explicit Unknown(std::vector<at::Tensor> parameters)
        : Optimizer(
              {torch::optim::OptimizerParamGroup(std::move(parameters))},
              std::make_unique<torch::optim::SGDOptions>(0.1)) {}
    at::Tensor step(LossClosure) override {
      return {};
    }
  };
  Unknown unknown(mlp->parameters());
  EXPECT_EQ(
      error_of([&] { get_optimizer_state_dict(*mlp, unknown); }),
      "[get_optimizer_state_dict] unsupported type of optimizer. Use SGD, "
      "Adam, AdamW, Adagrad, RMSprop or LBFGS.");
  StateDict state;
  state.insert("state.w1.weight.momentum_buffer", at::zeros({3}));
  state.insert("state.w9.weight.momentum_buffer", at::zeros({3}));
  EXPECT_EQ(
      error_of([&] { set_optimizer_state_dict(*mlp, sgd, state); }),
      "[set_optimizer_state_dict] unknown: state.w9.weight.momentum_buffer; "
      "of another shape: state.w1.weight.momentum_buffer is f32[3] for f32[2, "
      "2]. Pass a state dict of the same architecture, or strict = false to "
      "allow different names.");
}

} // namespace TEST_SOURCE
} // namespace dtensor
