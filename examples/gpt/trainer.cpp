// SPDX-License-Identifier: BSD-3-Clause
#include "trainer.h"

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>

namespace gpt {
namespace {

using namespace dtensor;
using Clock = std::chrono::steady_clock;

torch::Tensor unsharded(const torch::Tensor& t) {
  const auto plain = is_dtensor(t) ? DTensor(t).full_tensor() : t;
  return plain.detach().clone();
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Runs one step and returns the loss, the full value on every rank.
double step(
    GPT& model,
    torch::optim::Optimizer& optimizer,
    const Options& options,
    const std::pair<torch::Tensor, torch::Tensor>& batch) {
  optimizer.zero_grad();
  torch::Tensor loss;
  if (options.parallel.loss) {
    const auto guard = loss_parallel();
    loss = loss_of(model(batch.first), batch.second);
    loss.backward();
  } else {
    loss = loss_of(model(batch.first), batch.second);
    loss.backward();
  }
  optimizer.step();
  return loss.item<double>();
}

std::string generate(GPT& model, const Options& options, const Text& text) {
  const torch::NoGradGuard no_grad;
  model->eval();
  auto ids = text.ids.narrow(0, 0, 1).view({1, 1});
  for (int64_t i = 0; i < options.sample; ++i) {
    const auto begin = std::max<int64_t>(0, ids.size(1) - options.model.block);
    const auto window = ids.narrow(1, begin, ids.size(1) - begin);
    const auto logits = unsharded(model(window)).select(1, -1); // (1, V)
    const auto next = torch::softmax(logits / 0.8, -1).multinomial(1);
    ids = torch::cat({ids, next}, 1);
  }
  model->train();
  return text.decode(ids);
}

void collect(GPT& model, Result& result) {
  for (const auto& item : model->named_parameters()) {
    result.weights.insert(item.key(), unsharded(item.value()));
    result.gradients.insert(item.key(), unsharded(item.value().grad()));
  }
}

// Runs on every rank; rank 0 reports.
Result
train_rank(const Options& options, const Text& text, const Progress& progress) {
  auto mesh = init_device_mesh(torch::kCPU, {options.ranks}, {"tp"});
  dtensor::manual_seed(options.seed);
  GPT model(options.model);
  model->to(options.dtype);
  parallelize(model, mesh, options.parallel);
  torch::optim::AdamW optimizer(
      model->parameters(), torch::optim::AdamWOptions(options.learning_rate));

  Result result;
  const auto begin = Clock::now();
  for (int64_t i = 0; i < options.steps; ++i) {
    const auto batch = batch_of(
        text,
        options.batch,
        options.model.block,
        options.seed * 1000003 + static_cast<uint64_t>(i));
    // Counts and checks only the first step, because all steps are alike. The
    // others run without this overhead.
    std::optional<CommDebugMode> comm;
    std::optional<CheckReplicas> check;
    if (i == 0) {
      comm.emplace();
      check.emplace(*model, mesh);
    }
    result.losses.push_back(step(model, optimizer, options, batch));
    if (check) {
      check->finish();
    }
    if (comm) {
      result.collectives = comm->get_total_counts();
      result.communication = comm->generate_comm_debug_tracing_table();
    }
    result.tokens += options.batch * options.model.block;
    result.seconds = seconds_since(begin);
    if (progress && get_rank() == 0) {
      progress(
          i + 1,
          result.losses.back(),
          static_cast<double>(result.tokens) / result.seconds);
    }
  }
  collect(model, result);
  if (options.sample > 0) {
    result.sample = generate(model, options, text);
  }
  return result;
}

double largest_difference(
    const torch::OrderedDict<std::string, torch::Tensor>& a,
    const torch::OrderedDict<std::string, torch::Tensor>& b) {
  double largest = 0;
  for (const auto& item : a) {
    const auto difference = (item.value() - b[item.key()]).abs().max();
    largest = std::max(largest, difference.item<double>());
  }
  return largest;
}

} // namespace

Result
train(const Options& options, const Text& text, const Progress& progress) {
  Result result;
  std::once_flag first; // of this process's ranks, whose results are equal
  const auto run = [&] {
    auto mine = train_rank(options, text, progress);
    std::call_once(first, [&] { result = std::move(mine); });
  };
  const RunRanksOptions threads{.intra_op_threads = 1};
  if (options.ranks == 1) {
    run_ranks(1, run, threads); // one rank, in each process of a launcher
  } else {
    run_world(options.ranks, run, {.threads = threads});
  }
  return result;
}

Difference compare(const Result& a, const Result& b) {
  Difference difference;
  for (size_t i = 0; i < a.losses.size(); ++i) {
    difference.loss =
        std::max(difference.loss, std::abs(a.losses[i] - b.losses[i]));
  }
  difference.gradients = largest_difference(a.gradients, b.gradients);
  difference.weights = largest_difference(a.weights, b.weights);
  return difference;
}

} // namespace gpt
