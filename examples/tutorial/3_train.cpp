// SPDX-License-Identifier: BSD-3-Clause
// Steps 3 to 5 of the tutorial: trains a model on one device, trains it
// tensor-parallel according to a plan, and counts the communication.
#include "../check.h"
#include "model.h"

#include <dtensor/dtensor.h>
#include <torch/torch.h>

#include <cmath>
#include <iostream>

using namespace dtensor;
using tutorial::Model;

constexpr int kSteps = 40;

// [make]
Model make_model() {
  torch::manual_seed(0); // every rank starts from the same weights
  Model model;
  model->to(torch::kDouble);
  return model;
}
// [/make]

// [train]
std::vector<double> train(Model& model) {
  torch::optim::AdamW optimizer(model->parameters(), 1e-2);
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    const auto loss = tutorial::loss_of(model, tutorial::next_batch());
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}
// [/train]

// [plan]
const ParallelizePlan kPlan = {
    {"*.up", ColwiseParallel()},   // weight (4C, C) S(0), output S(-1)
    {"*.down", RowwiseParallel()}, // weight (C, 4C) S(1), output R
    {"head", ColwiseParallel({.output_layouts = Replicate()})},
};
// [/plan]

void compare(
    const std::vector<double>& alone,
    const std::vector<double>& together) {
  for (size_t i = 0; i < alone.size(); ++i) {
    CHECK_THAT(std::abs(alone[i] - together[i]) < 1e-6);
  }
}

// [cost]
void print_cost(Model& model) {
  const CommDebugMode comm;
  tutorial::loss_of(model, tutorial::next_batch()).backward();
  if (get_rank() == 0) {
    std::cout << comm << layout_table(*model);
  }
  const int64_t expected = get_world_size() == 1 ? 0 : 6;
  CHECK_THAT(comm.get_total_counts() == expected);
}
// [/cost]

int main(int argc, char** argv) {
  tutorial::ranks_of(argc, argv); // ends a call with wrong arguments now
  // [alone]
  auto plain = make_model();
  const auto alone = train(plain);
  std::cout << "loss " << alone.front() << " -> " << alone.back() << "\n";
  // [/alone]
  CHECK_THAT(alone.back() < 0.1);

  // [together]
  run_world(tutorial::ranks_of(argc, argv), [&] {
    const auto mesh = init_device_mesh(torch::kCPU, {get_world_size()}, {"tp"});
    auto model = make_model();
    parallelize_module(*model, mesh, kPlan);
    CheckReplicas check(*model, mesh);
    compare(alone, train(model)); // the same losses, up to rounding
    check.finish();
    print_cost(model);
  });
  // [/together]
}
