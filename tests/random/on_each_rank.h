// SPDX-License-Identifier: BSD-3-Clause
// Runs a function on all ranks and returns the results, for tests of random
// draws.
#pragma once

#include <dtensor/dtensor.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

namespace dtensor::test_random {

using Tensors = std::vector<at::Tensor>;

/// Returns plain copies of the results of `fn` on each of `ranks` threads.
inline std::vector<Tensors> on_each_rank(
    int64_t ranks,
    const std::function<Tensors()>& fn) {
  std::vector<Tensors> results(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](int64_t rank) {
    auto& mine = results[static_cast<size_t>(rank)];
    for (const auto& t : fn()) {
      mine.push_back(t.detach().clone());
    }
  });
  return results;
}

/// Expects equal tensors on all ranks, and returns those of rank 0.
inline Tensors expect_alike(
    int64_t ranks,
    const std::function<Tensors()>& fn,
    const std::string& what = "") {
  const auto results = on_each_rank(ranks, fn);
  for (size_t rank = 1; rank < results.size(); ++rank) {
    for (size_t i = 0; i < results[0].size(); ++i) {
      EXPECT_TRUE(at::equal(results[rank][i], results[0][i]))
          << what << ": tensor " << i << " of rank " << rank << " of " << ranks;
    }
  }
  return results[0];
}

inline DeviceMesh line_of_ranks() {
  return init_device_mesh(at::kCPU, {get_world_size()}, {"tp"});
}

/// Returns this rank's shard of `rows` rows with four columns, by to_local().
inline at::Tensor shard_of_rows(int64_t rows) {
  return DTensor(distribute_tensor(
                     at::ones({rows, 4}),
                     line_of_ranks(),
                     {Shard(0)},
                     std::nullopt))
      .to_local();
}

/// Draws plain numbers in two ways: for a given tensor, and from given sizes.
inline Tensors replicated_draws() {
  return {
      torch::dropout(torch::ones({64}), 0.5, true),
      torch::rand({5}),
      torch::randn({40}),
      torch::randperm(20),
      torch::empty({3}).exponential_()};
}

} // namespace dtensor::test_random
