// SPDX-License-Identifier: BSD-3-Clause
// Steps 7 and 8 of the tutorial: combines data and tensor parallelism, compares
// the losses with those on one device, and saves the weights in a file.
#include "../check.h"
#include "../state_file.h"
#include "model.h"

#include <dtensor/dtensor.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <iostream>

#include <unistd.h>

using namespace dtensor;
using tutorial::Batch;
using tutorial::Model;

constexpr int kSteps = 10;

Model make_model() {
  torch::manual_seed(0);
  Model model;
  model->to(torch::kDouble);
  return model;
}

const ParallelizePlan kPlan = {
    {"*.up", ColwiseParallel()},
    {"*.down", RowwiseParallel()},
    {"head", ColwiseParallel({.output_layouts = Replicate()})},
};

// [part]
// Every rank draws the same batch; this row of the mesh takes its slice.
Batch part_of(const Batch& batch, const DeviceMesh& mesh) {
  const auto rows = mesh.size("dp");
  const auto row = static_cast<size_t>(mesh.get_local_rank("dp"));
  return {batch.ids.chunk(rows)[row], batch.targets.chunk(rows)[row]};
}
// [/part]

std::vector<double> train_alone(Model& model) {
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    const auto loss = tutorial::loss_of(model, tutorial::next_batch());
    optimizer.zero_grad();
    loss.backward();
    torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

// [train]
std::vector<double> train(const DeviceMesh& mesh, Model& model) {
  parallelize_module(*model, mesh["tp"], kPlan);
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    const auto batch = part_of(tutorial::next_batch(), mesh);
    auto loss = tutorial::loss_of(model, batch);
    optimizer.zero_grad();
    loss.backward();
    average_gradients(model->parameters(), mesh["dp"]);
    clip_grad_norm_(model->parameters(), 1.0);
    optimizer.step();
    loss = get_group(mesh, "dp").all_reduce(loss.detach(), ReduceOp::kAvg);
    losses.push_back(loss.item<double>()); // of the full batch
  }
  return losses;
}
// [/train]

int main(int argc, char** argv) {
  auto plain = make_model();
  const auto alone = train_alone(plain);
  run_world(tutorial::ranks_of(argc, argv), [&] {
    // [mesh]
    const int64_t columns = get_world_size() % 2 == 0 ? 2 : 1;
    const auto mesh = init_device_mesh(
        torch::kCPU, {get_world_size() / columns, columns}, {"dp", "tp"});
    // [/mesh]
    auto model = make_model();
    const auto losses = train(mesh, model);
    for (size_t i = 0; i < losses.size(); ++i) {
      CHECK_THAT(std::abs(losses[i] - alone[i]) < 1e-6);
    }
    // [save]
    const auto state = get_model_state_dict(
        *model, {.full_state_dict = true, .cpu_offload = true});
    if (get_rank() == 0) { // other ranks have an empty dictionary
      const auto file = std::filesystem::temp_directory_path() /
          ("tutorial-" + std::to_string(getpid()) + ".pt");
      save_state(file, state);
      auto again = make_model(); // plain, on this rank only
      set_model_state_dict(*again, load_state(file));
      std::filesystem::remove(file);
      CHECK_THAT(torch::allclose(again->head->weight, plain->head->weight));
    }
    // [/save]
    if (get_rank() == 0) {
      std::cout << mesh << ": loss " << losses.front() << " -> "
                << losses.back() << ", as on one device\n";
    }
  });
}
