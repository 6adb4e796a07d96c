// SPDX-License-Identifier: BSD-3-Clause
// Training of the example's GPT on one process, and with sharded batches,
// parameters and layers.
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

#include <algorithm>
#include <functional>
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

/// Returns the tokens and targets of a step, (B, T).
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
  int64_t accumulate = 1; // backward passes per step
  /// True if each backward pass reduces gradients.
  bool sync_each = true;
  std::optional<double> max_norm;
};

/// Accumulates gradients for shard `index` of `count` of the step's batch, and
/// returns the loss.
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

/// Returns the losses of the full batches.
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

struct Layout {
  std::vector<int64_t> shape;
  std::vector<std::string> names; // "repeat", "shard" and "tp"
  bool has(const std::string& name) const {
    return std::find(names.begin(), names.end(), name) != names.end();
  }
  int64_t ranks() const {
    int64_t all = 1;
    for (const auto size : shape) {
      all *= size;
    }
    return all;
  }
};

/// Makes each block a unit, and a unit of the remaining parameters.
inline void shard_gpt(
    gpt::GPT& model,
    const DeviceMesh& mesh,
    const FullyShardOptions& given = {}) {
  auto options = given;
  options.mesh = mesh;
  for (const auto& block : *model->blocks) {
    fully_shard(*block, options);
  }
  fully_shard(*model, options);
}

/// Returns the mesh of data parallelism.
inline DeviceMesh data_mesh(const DeviceMesh& mesh, const Layout& layout) {
  return layout.has("repeat") ? mesh[{"repeat", "shard"}] : mesh["shard"];
}

/// Returns this rank's index in the mesh of data parallelism.
inline int64_t data_index(const DeviceMesh& data) {
  int64_t index = 0;
  for (int64_t m = 0; m < data.ndim(); ++m) {
    index = index * data.size(m) + data.get_local_rank(m);
  }
  return index;
}

inline double mean_over(double value, const DeviceMesh& mesh) {
  auto mean = at::scalar_tensor(value, at::kDouble);
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    mean = get_group(mesh, m).all_reduce(mean, ReduceOp::kAvg);
  }
  return mean.item<double>();
}

/// One rank of a run with layers over "tp" (with sequence parallelism), and
/// sharded parameters and batches.
class ShardedRun {
 public:
  ShardedRun(
      gpt::GPT model,
      const Layout& layout,
      const FullyShardOptions& sharding = {})
      : mesh_(init_device_mesh(at::kCPU, layout.shape, layout.names)),
        data_(data_mesh(mesh_, layout)),
        model_(spread(std::move(model), mesh_, data_, layout, sharding)),
        root_(*model_),
        optimizer_(model_->parameters(), torch::optim::AdamWOptions(1e-2)) {}

  /// Returns the loss of the full batch.
  double step(int64_t number, const Options& options) {
    optimizer_.zero_grad();
    const auto mine = accumulate_gradients(
        options,
        number,
        data_index(data_),
        data_.size(),
        [&](bool last) {
          root_.set_requires_gradient_sync(options.sync_each || last);
        },
        [&](const at::Tensor& ids, const at::Tensor& targets) {
          const auto guard = loss_parallel();
          const auto loss = gpt::loss_of(model_->forward(ids), targets);
          (loss / options.accumulate).backward();
          return full(loss).item<double>();
        });
    if (options.max_norm) {
      clip_grad_norm_(model_->parameters(), *options.max_norm);
    }
    optimizer_.step();
    return mean_over(mine, data_);
  }

  const DeviceMesh& mesh() const {
    return mesh_;
  }
  gpt::GPT& model() {
    return model_;
  }
  torch::optim::AdamW& optimizer() {
    return optimizer_;
  }

 private:
  static gpt::GPT spread(
      gpt::GPT model,
      const DeviceMesh& mesh,
      const DeviceMesh& data,
      const Layout& layout,
      const FullyShardOptions& sharding) {
    if (layout.has("tp")) {
      gpt::parallelize(model, mesh["tp"], {.sequence = true, .loss = true});
    }
    shard_gpt(model, data, sharding);
    return model;
  }

  DeviceMesh mesh_;
  DeviceMesh data_;
  gpt::GPT model_;
  FSDPModule root_;
  torch::optim::AdamW optimizer_;
};

} // namespace dtensor::test_training
