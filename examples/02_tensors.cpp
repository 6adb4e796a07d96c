// SPDX-License-Identifier: BSD-3-Clause
// A distributed tensor is an at::Tensor of the global shape. Operators give the
// same results as on the full tensor, and sharding propagation decides their
// layouts. DTensor(x) gives access to the layout.
#include "check.h"

#include <dtensor/dtensor.h>
#include <torch/torch.h>

#include <iostream>

using namespace dtensor;

// Every rank has the full tensor and keeps its shard.
void distribute(const DeviceMesh& mesh) {
  const auto full = torch::arange(12.0).view({4, 3});
  const auto rows = distribute_tensor(full, mesh, {Shard(0)});
  CHECK_THAT(rows.sizes() == full.sizes());
  CHECK_THAT(to_local(rows).size(0) == 2);
  CHECK_THAT(torch::equal(full_tensor(rows), full));
}

// Every rank has a shard; together they are one tensor.
void from_parts(const DeviceMesh& mesh) {
  const auto part = torch::full({1, 2}, static_cast<double>(get_rank()));
  const auto joined = DTensor::from_local(part, mesh, {Shard(0)});
  CHECK_THAT(joined.size(0) == 2);
  const auto sum = DTensor::from_local(part, mesh, {Partial("sum")});
  CHECK_THAT(full_tensor(sum).sum().item<double>() == 2.0);
}

// A matrix product over a sharded dimension is a partial sum. It is reduced
// only when its values are needed.
void operators(const DeviceMesh& mesh) {
  torch::manual_seed(0); // every process draws the same numbers
  const auto a = torch::rand({4, 6}, torch::kDouble);
  const auto b = torch::rand({6, 2}, torch::kDouble);
  const auto da = distribute_tensor(a, mesh, {Shard(1)});
  const auto db = distribute_tensor(b, mesh, {Shard(0)});
  const auto product = torch::mm(da, db);
  if (get_rank() == 0) {
    std::cout << *DTensor(product).spec() << "\n";
  }
  CHECK_THAT(DTensor(product).placements()[0] == Partial("sum"));
  CHECK_THAT(torch::allclose(full_tensor(product), torch::mm(a, b)));

  const auto shards = redistribute(product, {Shard(0)});
  CHECK_THAT(to_local(shards).size(0) == 2);
}

// Gradients are DTensors too.
void gradients(const DeviceMesh& mesh) {
  auto w = distribute_tensor(
      torch::rand({4, 3}, torch::kDouble).requires_grad_(), mesh, {Shard(0)});
  (w * w).sum().backward();
  CHECK_THAT(DTensor(w.grad()).placements()[0] == Shard(0));
  CHECK_THAT(torch::allclose(to_local(w.grad()), 2 * to_local(w)));
}

// Errors state the problem, and what to do instead.
void errors(const DeviceMesh& mesh) {
  const auto d = distribute_tensor(torch::ones({4}), mesh, {Shard(0)});
  try {
    const auto mixed = d + torch::ones({4});
    CHECK_THAT(false);
  } catch (const c10::Error& error) {
    if (get_rank() == 0) {
      std::cout << error.what_without_backtrace() << "\n";
    }
  }
}

int main() {
  run_world(2, [] {
    const auto mesh = init_device_mesh(torch::kCPU, {get_world_size()}, {"tp"});
    distribute(mesh);
    from_parts(mesh);
    operators(mesh);
    gradients(mesh);
    errors(mesh);
  });
}
