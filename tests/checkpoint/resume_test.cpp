// SPDX-License-Identifier: BSD-3-Clause
// A run that is stopped and resumed elsewhere has the losses of an
// uninterrupted run.
#include <dtensor/checkpoint/async_saver.h>
#include <dtensor/checkpoint/checkpoint_folder.h>
#include <dtensor/data_parallel/fully_shard.h>
#include <dtensor/random/random.h>
#include <tests/parallel/modules.h>
#include <tests/weights/files.h>

#include <functional>
#include <map>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test_modules;
using test_weights::Folder;

struct Training {
  Mlp model;
  torch::optim::AdamW optimizer;
  DeviceMesh mesh;

  // Parallelizes the model over the last dimension of the mesh.
  Training(const DeviceMesh& whole, uint64_t seed)
      : model(filled(Mlp(6, 7), seed)),
        optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2)),
        mesh(whole.ndim() == 1 ? whole : whole["tp"]) {
    parallelize_module(*model, mesh, mlp_plan());
  }

  // Trains one step, with noise so that random numbers matter, and with a
  // decreasing learning rate.
  double step(int64_t number) {
    for (auto& group : optimizer.param_groups()) {
      group.options().set_lr(1e-2 / static_cast<double>(1 + number));
    }
    optimizer.zero_grad();
    const auto noise =
        to_local(randn({4, 6}, mesh, {Replicate()}, {.dtype = at::kDouble}));
    const auto x = uniform({4, 6}, static_cast<uint64_t>(number)) +
        noise * 0.1 + torch::randn({4, 6}, at::kDouble) * 0.1;
    const auto loss = model(x).pow(2).mean();
    loss.backward();
    optimizer.step();
    return full(loss).item<double>();
  }

  CheckpointState state(CheckpointExtra& extra) {
    return {.model = model.get(), .optimizer = &optimizer, .extra = &extra};
  }
};

DeviceMesh mesh_of(const std::vector<int64_t>& shape) {
  return shape.size() == 1 ? init_device_mesh(at::kCPU, shape, {"tp"})
                           : init_device_mesh(at::kCPU, shape, {"dp", "tp"});
}

TEST(ResumedRun, HasTheSameLosses) {
  const Folder folder;
  constexpr int64_t kStop = 5;
  constexpr int64_t kSteps = 10;
  std::vector<double> truth;
  run_ranks(4, [&] {
    manual_seed(3);
    Training run(mesh_of({2, 2}), 1);
    AsyncSaver saver;
    for (int64_t number = 0; number < kSteps; ++number) {
      if (number == kStop) {
        CheckpointExtra extra = {
            {"step", number}, {"random", get_random_state()}};
        saver.save(folder / "step_5", run.state(extra));
      }
      const auto loss = run.step(number);
      if (get_rank() == 0) {
        truth.push_back(loss);
      }
    }
    saver.wait();
  });
  const std::vector<std::vector<int64_t>> meshes = {{2, 2}, {4}, {3}, {1}};
  for (const auto& shape : meshes) {
    const auto ranks = c10::multiply_integers(shape);
    run_ranks(ranks, [&] {
      manual_seed(99);
      Training run(mesh_of(shape), 50);
      CheckpointExtra extra;
      load_checkpoint(folder / "step_5", run.state(extra));
      set_random_state(std::get<at::Tensor>(extra.at("random")));
      EXPECT_EQ(std::get<int64_t>(extra.at("step")), kStop);
      for (int64_t number = kStop; number < kSteps; ++number) {
        EXPECT_NEAR(run.step(number), truth[static_cast<size_t>(number)], 1e-9)
            << "step " << number << " on " << ranks;
      }
    });
  }
}

// The optimizer's state has the names that Python uses.
TEST(ResumedRun, NamesWhatTheOptimizerKeeps) {
  const Folder folder;
  Training run(mesh_of({1}), 1);
  run.step(0);
  CheckpointExtra extra;
  save_checkpoint(folder / "one", run.state(extra));
  StateDict found;
  found.insert("optimizer.state.w1.weight.exp_avg", at::zeros({7, 6}));
  found.insert("optimizer.state.w2.bias.step", at::zeros({}, at::kLong));
  found.insert("optimizer.param_groups.w1.bias.lr", at::zeros({}, at::kDouble));
  load_checkpoint(folder / "one", {.tensors = &found});
  EXPECT_EQ(found["optimizer.state.w2.bias.step"].item<int64_t>(), 1);
  EXPECT_EQ(found["optimizer.param_groups.w1.bias.lr"].item<double>(), 1e-2);
  EXPECT_GT(
      found["optimizer.state.w1.weight.exp_avg"].abs().sum().item<double>(), 0);
}

double lbfgs_step(Mlp& model, torch::optim::LBFGS& optimizer, int64_t number) {
  const auto x = uniform({4, 6}, static_cast<uint64_t>(number));
  const auto loss = optimizer.step([&] {
    optimizer.zero_grad();
    auto value = model(x).square().mean();
    value.backward();
    return value.detach();
  });
  return full(loss).item<double>();
}

// LBFGS treats all parameters as one vector. It resumes from shards on three
// ranks to other shards, to tensor parallelism, and to one rank.
TEST(ResumedRun, OfLbfgsHasTheSameLosses) {
  const Folder folder;
  const auto options =
      torch::optim::LBFGSOptions(0.1).max_iter(4).history_size(3);
  constexpr int64_t kStop = 2;
  std::vector<double> truth;
  run_ranks(3, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {3}, {"dp"});
    auto model = filled(Mlp(6, 7));
    fully_shard(*model, {.mesh = mesh});
    torch::optim::LBFGS optimizer(model->parameters(), options);
    for (int64_t number = 0; number < 2 * kStop; ++number) {
      if (number == kStop) {
        save_checkpoint(
            folder / "two", {.model = model.get(), .optimizer = &optimizer});
      }
      const auto loss = lbfgs_step(model, optimizer, number);
      if (get_rank() == 0) {
        truth.push_back(loss);
      }
    }
  });
  using Spread = std::function<void(Mlp&, const DeviceMesh&)>;
  const std::map<int64_t, Spread> spreads = {
      {1, [](Mlp&, const DeviceMesh&) {}},
      {2,
       [](Mlp& model, const DeviceMesh& mesh) {
         parallelize_module(*model, mesh, mlp_plan());
       }},
      {4, [](Mlp& model, const DeviceMesh& mesh) {
         fully_shard(*model, {.mesh = mesh});
       }}};
  for (const auto& item : spreads) {
    run_ranks(item.first, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {item.first}, {"ranks"});
      auto model = filled(Mlp(6, 7), 50);
      item.second(model, mesh);
      torch::optim::LBFGS optimizer(model->parameters());
      load_checkpoint(
          folder / "two", {.model = model.get(), .optimizer = &optimizer});
      for (int64_t number = kStop; number < 2 * kStop; ++number) {
        EXPECT_NEAR(
            lbfgs_step(model, optimizer, number),
            truth[static_cast<size_t>(number)],
            1e-9)
            << "step " << number << " on " << mesh;
      }
    });
  }
}

TEST(ResumedRun, RequiresTheOptimizersState) {
  const Folder folder;
  Training run(mesh_of({1}), 1);
  save_checkpoint(folder / "one", {.model = run.model.get()});
  CheckpointExtra extra;
  EXPECT_EQ(
      error_of([&] { load_checkpoint(folder / "one", run.state(extra)); }),
      "[load_checkpoint] not in the checkpoint: optimizer.*. Load it into a "
      "matching model, or load what matches with strict = false.");
  load_checkpoint(folder / "one", run.state(extra), {.strict = false});
}

} // namespace TEST_SOURCE
} // namespace dtensor
