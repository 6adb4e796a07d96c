// SPDX-License-Identifier: BSD-3-Clause
// A plan that is found in a graph of operator calls, for a model without C++
// code: only its weights and calls are known.
#include "../arguments.h"
#include "../check.h"

#include <dtensor/dtensor.h>
#include <torch/torch.h>

#include <iostream>

using namespace dtensor;

// [graph]
// Describes relu(x @ up.t()) @ down.t().
OperatorGraph graph_of(const torch::Tensor& up, const torch::Tensor& down) {
  auto& operators = c10::Dispatcher::singleton();
  const auto linear = operators.findSchemaOrThrow("aten::linear", "");
  const auto relu = operators.findSchemaOrThrow("aten::relu", "");
  OperatorGraph graph;
  const auto x = graph.add_input(torch::empty({4, up.size(1)}, torch::kMeta));
  const auto none = c10::IValue();
  const auto h = graph.add_call(linear, {x, graph.add_input(up), none});
  const auto a = graph.add_call(relu, {h});
  graph.outputs = {
      graph.add_call(linear, {a, graph.add_input(down), none}),
  };
  return graph;
}
// [/graph]

void run() {
  torch::manual_seed(0);
  const auto x = torch::randn({4, 8});
  const auto up = torch::randn({24, 8});
  const auto down = torch::randn({8, 24});
  const auto call = [&] {
    return torch::linear(torch::relu(torch::linear(x, up)), down);
  };
  const auto truth = call();
  const auto mesh = init_device_mesh(torch::kCPU, {get_world_size()});
  // [plan]
  const auto model = module_tree({
      {"up.weight", up, false, WeightRole::kLinear},
      {"down.weight", down, false, WeightRole::kLinear},
  });
  const auto plan = find_tp_plan(graph_of(up, down), *model);
  parallelize_module(*model, mesh, make_plan(plan));
  // [/plan]
  if (get_rank() == 0) {
    std::cout << plan; // up colwise, down rowwise
  }
  CHECK_THAT(plan.size() == 2 && is_dtensor(up)); // the weights are sharded
  CHECK_THAT(torch::allclose(call(), truth, 1e-4, 1e-5));
}

int main(int argc, char** argv) {
  const char* const usage = "[ranks, default 2]";
  arguments::check(argc, argv, 1, usage);
  arguments::refuse_launcher("own_graph");
  run_ranks(arguments::positive(argc, argv, 1, 2, usage), run);
}
