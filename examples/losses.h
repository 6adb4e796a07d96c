// SPDX-License-Identifier: BSD-3-Clause
// Comparison of training runs: rank 0's losses on several ranks with those of
// one rank.
#pragma once

#include <examples/check.h>

#include <dtensor/dtensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

namespace losses {

/// Takes `steps` steps and returns the loss of each. `compute` returns the loss
/// of a step, before its backward pass. Compares replicas between ranks only
/// after the first step, so that later steps run without this overhead.
inline std::vector<double> of_steps(
    torch::nn::Module& model,
    int64_t steps,
    torch::optim::Optimizer& optimizer,
    const std::function<torch::Tensor()>& compute) {
  std::vector<double> losses;
  std::optional<dtensor::CheckReplicas> check(std::in_place, model);
  for (int64_t step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const auto loss = compute();
    loss.backward();
    optimizer.step();
    if (check) {
      check->finish();
      check.reset();
    }
    losses.push_back(loss.item<double>());
  }
  return losses;
}

/// Runs `train` on `ranks` ranks and returns rank 0's losses.
inline std::vector<double> of_ranks(
    int64_t ranks,
    const std::function<std::vector<double>()>& train) {
  std::vector<double> losses;
  dtensor::run_ranks(ranks, [&](int64_t rank) {
    auto mine = train();
    if (rank == 0) {
      losses = std::move(mine);
    }
  });
  return losses;
}

/// Prints the losses of one rank, which must fall.
inline void print(const std::vector<double>& alone) {
  std::cout << "1 rank: loss " << alone.front() << " to " << alone.back()
            << "\n";
  CHECK_THAT(alone.size() == 1 || alone.back() < alone.front());
}

/// Checks that `losses` are those of one rank, and prints the largest
/// difference.
inline void compare(
    const std::string& name,
    const std::vector<double>& losses,
    const std::vector<double>& alone) {
  CHECK_THAT(losses.size() == alone.size());
  double off = 0;
  for (size_t i = 0; i < losses.size(); ++i) {
    off = std::max(off, std::abs(losses[i] - alone[i]));
  }
  std::cout << name << ": at most " << off << " from one rank's losses\n";
  CHECK_THAT(off < 1e-9);
}

} // namespace losses
