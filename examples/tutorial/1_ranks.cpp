// SPDX-License-Identifier: BSD-3-Clause
#include "model.h"

#include <dtensor/dtensor.h>
#include <torch/torch.h>

#include <iostream>

using namespace dtensor;

int main(int argc, char** argv) {
  run_world(tutorial::ranks_of(argc, argv), [] {
    const auto mesh = init_device_mesh(torch::kCPU, {get_world_size()}, {"tp"});
    const auto mine = torch::full({2}, static_cast<double>(get_rank()));
    const auto sum = get_group(mesh, "tp").all_reduce(mine, ReduceOp::kSum);
    if (get_rank() == 0) {
      std::cout << mesh << ": " << sum[0].item<double>() << "\n";
    }
  });
}
