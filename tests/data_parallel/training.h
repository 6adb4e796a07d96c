// SPDX-License-Identifier: BSD-3-Clause
// The example's GPT trained on one process, and on ranks that share the batch,
// the parameters and the layers.
#pragma once

#include "examples/gpt/model.h"
#include "examples/gpt/plan.h"

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/ranks.h>
#include <dtensor/data_parallel/fully_shard.h>
#include <dtensor/debug/comm_debug_mode.h>
#include <dtensor/parallel/gradients.h>
#include <dtensor/parallel/loss_parallel.h>
#include <tests/parallel/modules.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dtensor::test_training {

using namespace dtensor::test_modules;

inline gpt::Config config() {
  return {
      .vocab = 17,
      .block = 10,
      .layers = 3,
      .heads = 4,
      .width = 20,
      .dropout = 0};
}

inline gpt::GPT make_gpt() {
  gpt::GPT model(config());
  return filled(model, 1);
}

/// Tokens and targets of a step, (B, T).
inline std::pair<at::Tensor, at::Tensor> batch_of(int64_t step) {
  const auto ids = torch::randint(
      config().vocab,
      {24, config().block + 1},
      at::detail::createCPUGenerator(static_cast<uint64_t>(100 + step)),
      torch::kLong);
  return {
      ids.narrow(1, 0, config().block).contiguous(),
      ids.narrow(1, 1, config().block).contiguous()};
}

struct Options {
  int64_t steps = 4;
  int64_t accumulate = 1; // backward passes a step
  /// Whether gradients are summed in each of them.
  bool sync_each = true;
  std::optional<double> max_norm;
};

/// What a step's batch, of which this is member `index` of `count`, gives.
template <class Loss>
double accumulate_gradients(
    const Options& options,
    int64_t step,
    int64_t index,
    int64_t count,
    const std::function<void(bool last)>& before,
    const Loss& loss_of) {
  const auto [ids, targets] = batch_of(step);
  const auto rows = ids.size(0) / count / options.accumulate;
  EXPECT_EQ(rows * count * options.accumulate, ids.size(0));
  double sum = 0;
  for (int64_t part = 0; part < options.accumulate; ++part) {
    before(part == options.accumulate - 1);
    const auto begin = (index * options.accumulate + part) * rows;
    const auto loss =
        loss_of(ids.narrow(0, begin, rows), targets.narrow(0, begin, rows));
    sum += loss / static_cast<double>(options.accumulate);
  }
  return sum;
}

/// Losses of the whole batches.
template <class Model>
std::vector<double> train_plain(Model& model, const Options& options) {
  torch::optim::AdamW optimizer(
      model->parameters(), torch::optim::AdamWOptions(1e-2));
  std::vector<double> losses;
  for (int64_t step = 0; step < options.steps; ++step) {
    optimizer.zero_grad();
    losses.push_back(accumulate_gradients(
        options,
        step,
        0,
        1,
        [](bool) {},
        [&](const at::Tensor& ids, const at::Tensor& targets) {
          const auto loss = gpt::loss_of(model->forward(ids), targets);
          (loss / options.accumulate).backward();
          return loss.template item<double>();
        }));
    if (options.max_norm) {
      torch::nn::utils::clip_grad_norm_(model->parameters(), *options.max_norm);
    }
    optimizer.step();
  }
  return losses;
}

} // namespace dtensor::test_training
