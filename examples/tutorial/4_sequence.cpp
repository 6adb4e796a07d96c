// SPDX-License-Identifier: BSD-3-Clause
// Step 6 of the tutorial: shards activations along the sequence, and computes
// the loss without gathering the logits.
#include "../check.h"
#include "model.h"

#include <dtensor/dtensor.h>
#include <torch/torch.h>

#include <iostream>

using namespace dtensor;
using tutorial::Model;

Model make_model() {
  torch::manual_seed(0);
  Model model;
  model->to(torch::kDouble);
  return model;
}

// [plan]
// Between modules, x (B, T, C) is a DTensor in S(1) on "tp".
const ColwiseParallel kColumns({.use_local_output = false});
const RowwiseParallel kRows(
    {.output_layouts = Shard(1), .use_local_output = false});

const ParallelizePlan kPlan = {
    {"embedding", kRows}, // weight S(0); reduce-scatters the output
    {"*.norm", SequenceParallel()},
    {"*.up", kColumns}, // all-gathers x
    {"*.down", kRows},  // reduce-scatters the result
    {"head", kColumns}, // logits (B, T, V) S(2)
};
// [/plan]

int main(int argc, char** argv) {
  auto plain = make_model();
  const auto batch = tutorial::next_batch();
  const auto truth = tutorial::loss_of(plain, batch);
  truth.backward();

  run_world(tutorial::ranks_of(argc, argv), [&] {
    const auto mesh = init_device_mesh(torch::kCPU, {get_world_size()}, {"tp"});
    auto model = make_model();
    parallelize_module(*model, mesh, kPlan);
    // [step]
    const auto parallel = loss_parallel(); // until the end of the scope
    const auto loss = tutorial::loss_of(model, batch);
    loss.backward();
    CHECK_THAT(torch::allclose(full_tensor(loss), truth));
    // [/step]
    const auto& right = plain->first->norm->weight.grad();
    const auto& gradient = model->first->norm->weight.grad();
    CHECK_THAT(torch::allclose(full_tensor(gradient), right));
    if (get_rank() == 0) {
      std::cout << "loss " << loss.item<double>() << " on " << get_world_size()
                << " ranks, " << truth.item<double>() << " alone\n";
    }
  });
}
