// SPDX-License-Identifier: BSD-3-Clause
// Optimizers that took steps before their parameters became DTensors.
#include <dtensor/parallel/distribute_optimizer_state.h>
#include <dtensor/parallel/state_dict.h>
#include <tests/data_parallel/training.h>

#include <functional>
#include <memory>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_training;
using torch::optim::Optimizer;

using MakeOptimizer =
    std::function<std::unique_ptr<Optimizer>(std::vector<at::Tensor>)>;

template <class AnOptimizer, class TheOptions>
MakeOptimizer maker(TheOptions options) {
  return [options](std::vector<at::Tensor> parameters) {
    return std::make_unique<AnOptimizer>(std::move(parameters), options);
  };
}

std::map<std::string, MakeOptimizer> optimizers() {
  using namespace torch::optim;
  return {
      {"SGD", maker<SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true))},
      {"Adam", maker<Adam>(AdamOptions(1e-2).amsgrad(true).eps(1e-3))},
      {"AdamW", maker<AdamW>(AdamWOptions(1e-2).eps(1e-3))},
      {"Adagrad", maker<Adagrad>(AdagradOptions(1e-2))},
      {"RMSprop",
       maker<RMSprop>(
           RMSpropOptions(1e-2).centered(true).momentum(0.9).eps(1e-3))},
      {"LBFGS", maker<LBFGS>(LBFGSOptions(1e-2).max_iter(3))}};
}

// Takes steps with the full batch on every rank.
void take_steps(Mlp& model, Optimizer& optimizer, int from, int to) {
  for (int i = from; i < to; ++i) {
    const auto x = uniform({4, 6}, 20 + static_cast<uint64_t>(i));
    optimizer.step([&] {
      optimizer.zero_grad();
      const auto loss = model(x).square().mean();
      loss.backward();
      return loss.detach();
    });
  }
}

struct Spread {
  std::vector<int64_t> shape;
  std::vector<std::string> names;
  /// Stages of distribution. Steps are taken before the first and after each
  /// stage.
  std::vector<std::function<void(Mlp&, const DeviceMesh&)>> stages;
};

void parallelize(Mlp& mlp, const DeviceMesh& mesh) {
  parallelize_module(*mlp, mesh["tp"], mlp_plan());
}
void shard(Mlp& mlp, const DeviceMesh& mesh) {
  fully_shard(*mlp->w1, {.mesh = mesh["dp"]});
  fully_shard(*mlp, {.mesh = mesh["dp"]});
}

std::vector<Spread> spreads() {
  return {
      {{2}, {"tp"}, {parallelize}},
      {{3}, {"tp"}, {[](Mlp& mlp, const DeviceMesh& mesh) {
         parallelize_module(
             *mlp,
             mesh,
             {{"w1", RowwiseParallel({.input_layouts = Replicate()})},
              {"w2", ColwiseParallel({.output_layouts = Replicate()})}});
       }}},
      {{3}, {"dp"}, {shard}},
      {{2, 2}, {"dr", "dp"}, {[](Mlp& mlp, const DeviceMesh& mesh) {
         fully_shard(*mlp, {.mesh = mesh});
       }}},
      {{2, 2}, {"dp", "tp"}, {[](Mlp& mlp, const DeviceMesh& mesh) {
         parallelize(mlp, mesh);
         shard(mlp, mesh);
       }}},
      {{2, 2}, {"dp", "tp"}, {parallelize, shard}}};
}

// Compares two plain steps, followed by two after each stage, with steps of a
// single process.
void expect_to_go_on(
    const std::string& name,
    const MakeOptimizer& make,
    const Spread& spread) {
  const auto stages = static_cast<int>(spread.stages.size());
  auto plain = filled(Mlp(6, 7));
  auto alone = make(plain->parameters());
  take_steps(plain, *alone, 0, 2 * (stages + 1));
  run_ranks(spread.shape.size() == 2 ? 4 : spread.shape[0], [&] {
    const auto mesh = init_device_mesh(at::kCPU, spread.shape, spread.names);
    auto mlp = filled(Mlp(6, 7));
    auto optimizer = make(mlp->parameters());
    take_steps(mlp, *optimizer, 0, 2);
    for (int i = 0; i < stages; ++i) {
      spread.stages[static_cast<size_t>(i)](mlp, mesh);
      const CommDebugMode comm;
      distribute_optimizer_state(*optimizer);
      EXPECT_EQ(comm.get_total_counts(), 0);
      take_steps(mlp, *optimizer, 2 * (i + 1), 2 * (i + 2));
    }
    for (const auto& item : mlp->named_parameters()) {
      expect_close(
          item.value(),
          plain->named_parameters()[item.key()],
          c10::str(name, " on ", mesh, ": ", item.key()),
          1e-12);
    }
  });
}

TEST(DistributeOptimizerState, ContinuesAnyOptimizer) {
  for (const auto& [name, make] : optimizers()) {
    for (const auto& spread : spreads()) {
      if (name == "LBFGS" && spread.names.back() == "tp" &&
          spread.names.size() == 2) {
        continue; // unevenly sharded shards have no flat view
      }
      expect_to_go_on(name, make, spread);
    }
  }
}

TEST(DistributeOptimizerState, GivesTheLayoutOfTheParameter) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    auto mlp = filled(Mlp(6, 7));
    torch::optim::AdamW optimizer(mlp->parameters());
    take_steps(mlp, optimizer, 0, 1);
    const auto before = get_optimizer_state_dict(*mlp, optimizer);
    parallelize(mlp, mesh);
    shard(mlp, mesh);
    distribute_optimizer_state(optimizer);
    const auto state = get_optimizer_state_dict(*mlp, optimizer);
    for (const auto& item : mlp->named_parameters()) {
      const auto name = "state." + item.key() + ".exp_avg";
      EXPECT_EQ(DTensor(state[name]).spec(), DTensor(item.value()).spec())
          << name;
      expect_close(state[name], before[name], name, 0);
    }
  });
}

// Training continues with tensor and sequence parallelism of layers and norms.
TEST(DistributeOptimizerState, ContinuesAGptWithSequenceParallelism) {
  const Options options; // four steps
  auto plain = make_gpt();
  train_plain(plain, options);
  run_ranks(4, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    auto model = make_gpt();
    torch::optim::AdamW optimizer(
        model->parameters(), torch::optim::AdamWOptions(1e-2));
    for (int64_t step = 0; step < options.steps; ++step) {
      if (step == 2) {
        gpt::parallelize(model, mesh["tp"], {.sequence = true, .loss = true});
        fully_shard(*model, {.mesh = mesh["dp"]});
        distribute_optimizer_state(optimizer);
      }
      const auto guard = loss_parallel();
      const auto [ids, targets] = batch_of(step);
      optimizer.zero_grad();
      gpt::loss_of(model->forward(ids), targets).backward();
      optimizer.step();
    }
    expect_same_parameters(*model, *plain);
  });
}

TEST(DistributeOptimizerState, IsNamedInTheErrorOfAStepWithoutIt) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    for (const auto& [name, make] : optimizers()) {
      auto mlp = filled(Mlp(6, 7));
      auto optimizer = make(mlp->parameters());
      take_steps(mlp, *optimizer, 0, 1);
      shard(mlp, mesh);
      const auto text = error_of([&] { take_steps(mlp, *optimizer, 1, 2); });
      EXPECT_NE(text.find("got mixed plain tensor and DTensor"), text.npos)
          << name << ": " << text;
      if (name != "LBFGS") { // LBFGS computes a new state from it
        EXPECT_NE(
            text.find(
                " If the optimizer took steps before the parameter became a "
                "DTensor, call distribute_optimizer_state(optimizer) (C++), or "
                "create the optimizer again (Python)."),
            text.npos)
            << name << ": " << text;
      }
    }
  });
}

TEST(DistributeOptimizerState, NamesTheMismatch) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto mlp = filled(Mlp(6, 7));
    torch::optim::SGD optimizer(
        mlp->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    take_steps(mlp, optimizer, 0, 1);
    parallelize(mlp, mesh);
    auto& state = static_cast<torch::optim::SGDParamState&>(
        *optimizer.state().at(mlp->w1->weight.unsafeGetTensorImpl()));
    const auto momentum = state.momentum_buffer();
    state.momentum_buffer(at::ones({3}));
    EXPECT_EQ(
        error_of([&] { distribute_optimizer_state(optimizer); }),
        "[distribute_optimizer_state] optimizer state \"momentum_buffer\" is "
        "f32[3], but its parameter is f64[7, 6] on (tp=2): S(0). Pass an "
        "optimizer whose parameters had this shape.");
    state.momentum_buffer(distribute_tensor(momentum, mesh, {Shard(1)}));
    EXPECT_EQ(
        error_of([&] { distribute_optimizer_state(optimizer); }),
        "[distribute_optimizer_state] optimizer state \"momentum_buffer\" is "
        "f64[7, 6] on (tp=2): S(1), so this rank lacks values of its local "
        "shard of f64[7, 6] on (tp=2): S(0). Use set_optimizer_state_dict, "
        "which communicates.");
    state.momentum_buffer(DTensor::from_local(momentum, mesh, {Partial()}));
    EXPECT_EQ(
        error_of([&] { distribute_optimizer_state(optimizer); }),
        "[distribute_optimizer_state] optimizer state \"momentum_buffer\" is "
        "f64[7, 6] on (tp=2): P(sum), so this rank lacks values of its local "
        "shard of f64[7, 6] on (tp=2): S(0). Use set_optimizer_state_dict, "
        "which communicates.");
    const auto& other = static_cast<torch::optim::SGDParamState&>(
        *optimizer.state().at(mlp->w2->weight.unsafeGetTensorImpl()));
    EXPECT_FALSE(is_dtensor(other.momentum_buffer())); // unchanged
    set_optimizer_state_dict(
        *mlp, optimizer, get_optimizer_state_dict(*mlp, optimizer));
    EXPECT_EQ(
        layout_of(
            static_cast<torch::optim::SGDParamState&>(
                *optimizer.state().at(mlp->w1->weight.unsafeGetTensorImpl()))
                .momentum_buffer()),
        Shard(0));
  });
}

// Plain parameters and parameters without state are unaffected.
TEST(DistributeOptimizerState, LeavesTheRestAlone) {
  auto mlp = filled(Mlp(6, 7));
  torch::optim::AdamW optimizer(mlp->parameters());
  distribute_optimizer_state(optimizer);
  take_steps(mlp, optimizer, 0, 1);
  const auto before = get_optimizer_state_dict(*mlp, optimizer);
  distribute_optimizer_state(optimizer);
  const auto after = get_optimizer_state_dict(*mlp, optimizer);
  for (const auto& item : before) {
    EXPECT_TRUE(at::equal(item.value(), after[item.key()])) << item.key();
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
