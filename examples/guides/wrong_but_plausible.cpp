// SPDX-License-Identifier: BSD-3-Clause
// Programs that run with a decreasing loss, but with results that differ from
// one device, and how CheckReplicas finds the errors.
#include "../check.h"
#include "../tutorial/model.h"

#include <dtensor/dtensor.h>
#include <torch/torch.h>

#include <iostream>
#include <string>

using namespace dtensor;
using tutorial::Model;

Model make_model(const DeviceMesh& mesh, const Placement& logits) {
  torch::manual_seed(0);
  Model model;
  parallelize_module(
      *model,
      mesh,
      {{"embedding", RowwiseParallel({.input_layouts = Replicate()})},
       {"*.up", ColwiseParallel()},
       {"*.down", RowwiseParallel()},
       {"head", ColwiseParallel({.output_layouts = logits})}});
  return model;
}

// [step]
double train_step(
    Model& model,
    torch::optim::Optimizer& optimizer,
    const tutorial::Batch& batch) {
  optimizer.zero_grad();
  const auto loss = tutorial::loss_of(model, batch);
  loss.backward();
  optimizer.step();
  return loss.item<double>();
}

void train(Model& model, const DeviceMesh& mesh, int64_t steps) {
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);
  {
    CheckReplicas check(*model, mesh); // checks the first step
    train_step(model, optimizer, tutorial::next_batch());
    check.finish();
  }
  for (int64_t step = 1; step < steps; ++step) {
    train_step(model, optimizer, tutorial::next_batch());
  }
}
// [/step]

// Returns the text of the error that `run` throws.
template <class Run>
std::string error_of(const Run& run) {
  try {
    run();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

// [data]
// Wrong: under tensor parallelism, all ranks must get the same batch.
void train_on_other_data(Model& model, const DeviceMesh& mesh) {
  torch::manual_seed(static_cast<uint64_t>(get_rank()));
  train(model, mesh, 1);
}
// [/data]

// [compare]
void compare_own_tensors(Model& model, const DeviceMesh& mesh) {
  CheckReplicas check(*model, mesh);
  const auto batch = tutorial::next_batch();
  check.compare(batch.ids, mesh, "tokens");
}
// [/compare]

int main(int argc, char** argv) {
  run_world(tutorial::ranks_of(argc, argv), [] {
    const auto mesh = init_device_mesh(torch::kCPU, {get_world_size()}, {"tp"});
    auto right = make_model(mesh, Replicate());
    train(right, mesh, 3);
    compare_own_tensors(right, mesh);

    auto wrong = make_model(mesh, Replicate());
    const auto error = error_of([&] { train_on_other_data(wrong, mesh); });
    if (get_rank() == 0) {
      std::cout << error << "\n";
    }
    const bool found =
        error.find("the input of module \"embedding\"") != std::string::npos;
    CHECK_THAT(found == (get_world_size() > 1));
  });
}
