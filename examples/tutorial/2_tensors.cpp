// SPDX-License-Identifier: BSD-3-Clause
// Step 2 of the tutorial: a tensor that is sharded over ranks.
#include "../check.h"
#include "model.h"

#include <dtensor/dtensor.h>
#include <torch/torch.h>

#include <iostream>

using namespace dtensor;

// Shows the shards.
void shards(const DeviceMesh& mesh) {
  // [parts]
  const auto full = torch::arange(32.0).view({8, 4}); // on every rank
  const auto rows = distribute_tensor(full, mesh, {Shard(0)});
  CHECK_THAT(rows.sizes() == full.sizes());
  CHECK_THAT(to_local(rows).size(0) == 8 / mesh.size());
  CHECK_THAT(torch::equal(full_tensor(rows), full));
  // [/parts]
}

// Shows the layouts of operators' results.
void operators(const DeviceMesh& mesh) {
  torch::manual_seed(0); // every process draws the same numbers
  const auto x = torch::rand({8, 4}, torch::kDouble);
  const auto w = torch::rand({4, 6}, torch::kDouble);
  // [operators]
  const auto columns = distribute_tensor(x, mesh, {Shard(1)});
  const auto rows = distribute_tensor(w, mesh, {Shard(0)});
  const auto product = torch::mm(columns, rows);
  CHECK_THAT(DTensor(product).placements()[0] == Partial());

  const auto sum = redistribute(product, {Replicate()}); // an all-reduce
  CHECK_THAT(torch::allclose(to_local(sum), torch::mm(x, w)));
  // [/operators]
  // [print]
  if (get_rank() == 0) {
    const auto from = DTensor(product).spec();
    const auto to = DTensor(sum).spec();
    std::cout << *from << "\n" << to_string(*plan(from, to), mesh) << "\n";
  }
  // [/print]
}

int main(int argc, char** argv) {
  run_world(tutorial::ranks_of(argc, argv), [] {
    const auto mesh = init_device_mesh(torch::kCPU, {get_world_size()}, {"tp"});
    shards(mesh);
    operators(mesh);
  });
}
