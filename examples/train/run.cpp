// SPDX-License-Identifier: BSD-3-Clause
#include "run.h"

#include "../gpt/plan.h"

#include <dtensor/dtensor.h>
#include <examples/long_context/counted_memory.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <mutex>
#include <numbers>
#include <numeric>
#include <optional>

namespace training {
namespace {

using namespace dtensor;
using Clock = std::chrono::steady_clock;

constexpr int64_t kEvaluations = 4; // batches

// One rank of a run.
class Trainer {
 public:
  Trainer(const Options& options, const gpt::Text& text)
      : options_(options),
        mesh_(init_device_mesh(
            torch::kCPU,
            {options.dp, options.fsdp, options.tp},
            {"dp", "fsdp", "tp"})),
        data_(mesh_[{"dp", "fsdp"}]),
        model_(make_model()),
        unit_(spread()),
        optimizer_(
            model_->parameters(),
            torch::optim::AdamWOptions(options.learning_rate)) {
    const auto held_out = text.ids.size(0) / 10;
    train_text_ = {
        text.alphabet, text.ids.narrow(0, 0, text.ids.size(0) - held_out)};
    held_out_ = {
        text.alphabet,
        text.ids.narrow(0, text.ids.size(0) - held_out, held_out)};
  }

  Result run(const Progress& progress) {
    Result result;
    if (options_.resume) {
      resume();
    }
    result.first_step = step_;
    const auto begin = Clock::now();
    for (; step_ < options_.steps; ++step_) {
      std::optional<CheckReplicas> check;
      if (step_ == result.first_step) {
        check.emplace(*model_, mesh_);
      }
      result.losses.push_back(train_step());
      if (check) {
        check->finish();
      }
      if (progress && get_rank() == 0) {
        progress(step_ + 1, result.losses.back());
      }
      if (is_time_for(options_.evaluate_every)) {
        result.evaluations.push_back({step_ + 1, evaluate()});
      }
      const bool is_last = step_ + 1 == options_.steps;
      if (!options_.folder.empty() &&
          (is_last || is_time_for(options_.checkpoint_every))) {
        save();
      }
    }
    saver_.wait();
    if (!options_.folder.empty()) {
      keep_last(options_.folder, options_.keep); // the last one is complete
    }
    const std::chrono::duration<double> seconds = Clock::now() - begin;
    result.tokens_per_second = static_cast<double>(result.losses.size()) *
        static_cast<double>(options_.batch * options_.model.block) /
        seconds.count();
    return result;
  }

 private:
  // Deferred: memory is allocated only after sharding.
  gpt::GPT make_model() const {
    manual_seed(options_.seed);
    const DeferredInit scope;
    gpt::GPT model(options_.model);
    model->to(options_.dtype);
    return model;
  }

  // [spread]
  // First shards the layers by tensor parallelism, then the parameters of each
  // block, as a unit.
  FSDPModule spread() {
    if (options_.tp > 1) {
      gpt::parallelize(
          model_, mesh_["tp"], {.sequence = options_.sequence, .loss = true});
    }
    FullyShardOptions sharding{.mesh = data_};
    if (options_.bfloat16) {
      sharding.mp_policy = {
          .param_dtype = torch::kBFloat16, .reduce_dtype = torch::kFloat};
    }
    // [units]
    for (const auto& block : *model_->blocks) {
      fully_shard(*block, sharding);
    }
    auto unit = fully_shard(*model_, sharding); // parameters outside the blocks
    // [/units]
    materialize(*model_);
    return unit;
  }
  // [/spread]

  bool is_time_for(int64_t every) const {
    return every > 0 && (step_ + 1) % every == 0;
  }

  // Returns this rank's slice of the sequences (B, T) of a step, which all
  // ranks draw equally.
  std::pair<torch::Tensor, torch::Tensor>
  share_of(const gpt::Text& text, int64_t batch, uint64_t seed) const {
    const auto [ids, targets] =
        gpt::batch_of(text, batch, options_.model.block, seed);
    const auto rows = batch / data_.size();
    const auto first = rows *
        (mesh_.get_local_rank("dp") * options_.fsdp +
         mesh_.get_local_rank("fsdp"));
    return {ids.narrow(0, first, rows), targets.narrow(0, first, rows)};
  }

  torch::Tensor loss_of(
      const torch::Tensor& ids,
      const torch::Tensor& targets) {
    return gpt::loss_of(model_(ids).to(options_.dtype), targets);
  }

  double mean_over_ranks(double mine) const {
    auto mean = torch::tensor(mine, torch::kDouble);
    for (const auto* dim : {"dp", "fsdp"}) {
      mean = get_group(mesh_, dim).all_reduce(mean, ReduceOp::kAvg);
    }
    return mean.item<double>();
  }

  double train_step() {
    for (auto& group : optimizer_.param_groups()) {
      group.options().set_lr(learning_rate(options_, step_));
    }
    optimizer_.zero_grad();
    const auto seed =
        options_.seed * 1000003 + static_cast<uint64_t>(step_) + 1;
    const auto [ids, targets] = share_of(train_text_, options_.batch, seed);
    const auto parts = options_.accumulate;
    const auto rows = ids.size(0) / parts;
    const auto guard = loss_parallel(); // the logits are sharded
    double sum = 0;
    for (int64_t part = 0; part < parts; ++part) {
      // Gradients are reduced over ranks once per step.
      unit_.set_requires_gradient_sync(part == parts - 1);
      const auto loss = loss_of(
          ids.narrow(0, part * rows, rows),
          targets.narrow(0, part * rows, rows));
      (loss / static_cast<double>(parts)).backward();
      sum += full_tensor(loss.detach()).item<double>();
    }
    clip_grad_norm_(model_->parameters(), options_.max_norm);
    optimizer_.step();
    return mean_over_ranks(sum / static_cast<double>(parts));
  }

  double evaluate() {
    const torch::NoGradGuard no_grad;
    const auto guard = loss_parallel();
    model_->eval();
    double sum = 0;
    for (int64_t i = 0; i < kEvaluations; ++i) {
      const auto [ids, targets] =
          share_of(held_out_, options_.batch, static_cast<uint64_t>(i));
      sum += full_tensor(loss_of(ids, targets)).item<double>();
    }
    model_->train();
    unit_.reshard();
    return mean_over_ranks(sum / kEvaluations);
  }

  CheckpointState state() {
    return {.model = model_.get(), .optimizer = &optimizer_, .extra = &extra_};
  }

  // Copies the state now, and writes files while training continues.
  void save() {
    extra_ = {{"step", step_ + 1}, {"random", get_random_state()}};
    saver_.save(
        options_.folder + "/step_" + std::to_string(step_ + 1),
        state(),
        {.overwrite = true});
    keep_last(options_.folder, options_.keep);
  }

  void resume() {
    if (const auto last = latest_checkpoint(options_.folder)) {
      extra_ = {{"step", int64_t{0}}, {"random", get_random_state()}};
      load_checkpoint(*last, state());
      step_ = std::get<int64_t>(extra_["step"]);
      set_random_state(std::get<at::Tensor>(extra_["random"]));
    }
  }

  Options options_;
  DeviceMesh mesh_;
  DeviceMesh data_;
  gpt::GPT model_;
  FSDPModule unit_;
  torch::optim::AdamW optimizer_;
  gpt::Text train_text_;
  gpt::Text held_out_;
  AsyncSaver saver_;
  CheckpointExtra extra_;
  int64_t step_ = 0;
};

// Gathers one number of each rank, on all ranks.
std::vector<double> of_all_ranks(double mine) {
  const auto mesh = init_device_mesh(torch::kCPU, {get_world_size()});
  const auto all =
      get_group(mesh).all_gather(torch::tensor({mine}, torch::kDouble), 0);
  return {all.data_ptr<double>(), all.data_ptr<double>() + all.numel()};
}

Result train_rank(
    const Options& options,
    const gpt::Text& text,
    const Progress& progress) {
  constexpr double kMega = 1e6;
  const auto account = std::make_shared<MemoryAccount>();
  memory_account = account;
  Trainer trainer(options, text);
  auto result = trainer.run(progress);
  memory_account = nullptr;
  result.state_mb = of_all_ranks(static_cast<double>(account->now) / kMega);
  result.peak_mb = of_all_ranks(static_cast<double>(account->peak) / kMega);
  return result;
}

} // namespace

double learning_rate(const Options& options, int64_t step) {
  if (step < options.warmup) {
    return options.learning_rate * static_cast<double>(step + 1) /
        static_cast<double>(options.warmup);
  }
  const auto done = static_cast<double>(step - options.warmup) /
      static_cast<double>(std::max<int64_t>(1, options.steps - options.warmup));
  return options.learning_rate *
      (0.55 + 0.45 * std::cos(std::numbers::pi * done));
}

Result
train(const Options& options, const gpt::Text& text, const Progress& progress) {
  CountingAllocator::install();
  Result result;
  std::once_flag first; // first of this process's ranks; all have equal results
  run_world(
      options.ranks(),
      [&] {
        auto mine = train_rank(options, text, progress);
        std::call_once(first, [&] { result = std::move(mine); });
      },
      {.threads = {.intra_op_threads = 1}});
  return result;
}

} // namespace training
