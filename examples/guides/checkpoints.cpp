// SPDX-License-Identifier: BSD-3-Clause
// Saves a run, stops it, and resumes it on other ranks.
#include "../check.h"
#include "../tutorial/model.h"

#include <dtensor/dtensor.h>
#include <torch/torch.h>

#include <unistd.h>

#include <filesystem>
#include <iostream>

using namespace dtensor;
using tutorial::Model;

const ParallelizePlan kPlan = {
    {"*.up", ColwiseParallel()},
    {"*.down", RowwiseParallel()},
    {"head", ColwiseParallel({.output_layouts = Replicate()})},
};

// [train]
// Trains up to step `last`, starting from the last checkpoint in `folder`, if
// there is one. Returns the last loss.
double train(const DeviceMesh& mesh, const std::string& folder, int64_t last) {
  Model model;
  parallelize_module(*model, mesh, kPlan);
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);
  CheckpointExtra extra = {{"step", 0}};
  const CheckpointState state{
      .model = model.get(), .optimizer = &optimizer, .extra = &extra};
  if (const auto path = latest_checkpoint(folder)) {
    load_checkpoint(*path, state);
    set_random_state(std::get<at::Tensor>(extra["random"]));
  }
  AsyncSaver saver;
  double loss = 0;
  for (auto step = std::get<int64_t>(extra["step"]); step < last; ++step) {
    optimizer.zero_grad();
    const auto value = loss_of(model, tutorial::next_batch());
    value.backward();
    optimizer.step();
    loss = value.item<double>();
    if ((step + 1) % 5 == 0) {
      extra["step"] = step + 1;
      extra["random"] = get_random_state();
      saver.save(folder + "/step_" + std::to_string(step + 1), state);
      keep_last(folder, 2);
    }
  }
  saver.wait();
  return loss;
}
// [/train]

// [tensors]
// Saves named tensors sharded by rows on three ranks, and reads them sharded by
// columns on two.
void changes_layouts_on_load(const std::string& path) {
  const auto full = torch::arange(30.).view({5, 6});
  run_ranks(3, [&] {
    const auto mesh = init_device_mesh(torch::kCPU, {3});
    StateDict tensors;
    tensors.insert("w", distribute_tensor(full, mesh, {Shard(0)}));
    save_checkpoint(path, {.tensors = &tensors});
  });
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(torch::kCPU, {2});
    StateDict tensors;
    tensors.insert("w", zeros({5, 6}, mesh, {Shard(1)}));
    load_checkpoint(path, {.tensors = &tensors});
    CHECK_THAT(torch::equal(full_tensor(tensors["w"]), full));
  });
}
// [/tensors]

// [full]
// Exports a model in the format that other programs load.
void exports_a_full_checkpoint(const std::string& path) {
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(torch::kCPU, {2});
    Model model;
    parallelize_module(*model, mesh, kPlan);
    save_checkpoint(path, {.model = model.get()}, {.full = true});
  });
  const auto file = open_weights(path + "/model.safetensors");
  CHECK_THAT(file->find("first.up.weight") != nullptr);
}
// [/full]

int main() {
  const auto folder = (std::filesystem::temp_directory_path() /
                       ("checkpoints_" + std::to_string(::getpid())))
                          .string();
  for (const auto* name : {"", "/stopped", "/whole"}) {
    std::filesystem::create_directory(folder + name);
  }
  double truth = 0;
  double loss = 0;
  const auto run = [&](int64_t ranks, const std::string& where, int64_t last) {
    run_ranks(ranks, [&] {
      manual_seed(0);
      const auto mesh = init_device_mesh(torch::kCPU, {ranks}, {"tp"});
      const auto mine = train(mesh, folder + where, last);
      if (get_rank() == 0) {
        loss = mine;
      }
    });
  };
  run(2, "/whole", 20);
  truth = loss;
  run(2, "/stopped", 13); // the last checkpoint is of step 10
  run(3, "/stopped", 20);
  std::cout << "loss " << loss << ", without a stop " << truth << "\n";
  CHECK_THAT(std::abs(loss - truth) < 1e-4);
  CHECK_THAT(
      *latest_checkpoint(folder + "/stopped") == folder + "/stopped/step_20");
  changes_layouts_on_load(folder + "/layouts");
  exports_a_full_checkpoint(folder + "/exported");
  std::filesystem::remove_all(folder);
}
