// SPDX-License-Identifier: BSD-3-Clause
// A training step on one long sequence, which no rank has in full. With each
// method, loss and gradients equal those of plain attention on one rank, and
// each of n ranks needs little more than 1/n of its memory.
//
//   long_context [tokens] [ranks]        8192 tokens on 4 ranks
//
// docs/guides/long_context.md quotes parts of this file.
#include <examples/arguments.h>
#include <examples/check.h>
#include <examples/long_context/counted_memory.h>
#include <examples/long_context/model.h>

#include <dtensor/dtensor.h>

#include <cstdlib>
#include <functional>
#include <iomanip>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

using namespace dtensor;

constexpr int64_t kVocabulary = 64;

// Results and costs of a step.
struct Outcome {
  double loss = 0;
  std::vector<torch::Tensor> gradients;
  int64_t peak_bytes = 0; // of the rank that needed most
};

torch::Tensor sum_of_losses(
    const torch::Tensor& logits,
    const torch::Tensor& labels) {
  return torch::nn::functional::cross_entropy(
      logits.flatten(0, 1),
      labels.flatten(),
      torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
}

// Equal on every rank.
struct Batch {
  explicit Batch(int64_t length)
      : ids(torch::arange(length).mul(7919).add(3).remainder(kVocabulary)),
        positions(torch::arange(length)),
        labels(ids.roll(-1)) {
    ids = ids.view({1, -1});
    labels = labels.view({1, -1});
  }
  torch::Tensor ids, positions, labels;
};

// Runs one rank's step. The mesh may have one rank.
Outcome train(const DeviceMesh& mesh, int64_t length) {
  torch::manual_seed(0);
  Decoder model(kVocabulary, length);
  Batch batch(length);
  const CheckReplicas check(*model, mesh, {.losses = false}); // of own tokens
  // [step]
  // In the scope, these three hold this rank's tokens, and attention covers the
  // tokens of all ranks.
  const auto scope = context_parallel(
      mesh,
      {.buffers = {batch.ids, batch.positions, batch.labels},
       .buffer_seq_dims = {1, 0, 1}});
  const auto logits = model(batch.ids, batch.positions);
  const auto loss = sum_of_losses(logits, batch.labels) / length;
  loss.backward();

  // Ranks have results for their own tokens only.
  Group& group = get_group(mesh);
  Outcome outcome;
  outcome.loss = group.all_reduce(loss.detach(), ReduceOp::kSum).item<double>();
  for (const auto& parameter : model->parameters()) {
    outcome.gradients.push_back(
        group.all_reduce(parameter.grad(), ReduceOp::kSum));
  }
  // [/step]
  return outcome;
}

// Runs the step with plain attention, on one rank.
Outcome train_plainly(int64_t length) {
  torch::manual_seed(0);
  Decoder model(kVocabulary, length);
  const Batch batch(length);
  const auto logits = model(batch.ids, batch.positions);
  const auto loss = sum_of_losses(logits, batch.labels) / length;
  loss.backward();
  Outcome outcome;
  outcome.loss = loss.item<double>();
  for (const auto& parameter : model->parameters()) {
    outcome.gradients.push_back(parameter.grad());
  }
  return outcome;
}

// Measures the memory of each rank's tensors and prints it.
Outcome measured(
    int64_t ranks,
    const std::string& what,
    const std::function<Outcome()>& step) {
  std::vector<std::shared_ptr<MemoryAccount>> accounts;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    accounts.push_back(std::make_shared<MemoryAccount>());
  }
  Outcome result;
  run_ranks(ranks, [&](int64_t rank) {
    memory_account = accounts[static_cast<size_t>(rank)];
    Outcome mine = step();
    memory_account = nullptr;
    if (rank == 0) {
      result = std::move(mine);
    }
  });
  std::cout << std::setw(2) << ranks << (ranks == 1 ? " rank:  " : " ranks: ")
            << std::setw(9) << what << " loss " << std::fixed
            << std::setprecision(6) << result.loss << ", MB of memory"
            << std::setprecision(1);
  for (const auto& account : accounts) {
    std::cout << ' ' << static_cast<double>(account->peak) / 1e6;
    result.peak_bytes = std::max(result.peak_bytes, account->peak.load());
  }
  std::cout << '\n';
  return result;
}

Outcome train_on(int64_t ranks, int64_t length, const std::string& method) {
  return measured(ranks, method, [&] {
    const auto mesh = init_device_mesh(torch::kCPU, {ranks}, {"cp"});
    set_rotate_method(method);
    return train(mesh, length);
  });
}

// Returns the memory per rank, relative to that of one rank alone.
double compare(const Outcome& together, const Outcome& alone) {
  CHECK_THAT(std::abs(together.loss - alone.loss) < 1e-5 * alone.loss);
  for (size_t i = 0; i < alone.gradients.size(); ++i) {
    const auto off = (together.gradients[i] - alone.gradients[i]).abs().max();
    CHECK_THAT(off.item<double>() < 1e-5);
  }
  return static_cast<double>(together.peak_bytes) /
      static_cast<double>(alone.peak_bytes);
}

int main(int argc, char** argv) {
  const std::string usage = "[tokens, default 8192] [ranks, default 4]";
  arguments::check(argc, argv, 2, usage);
  const int64_t length = arguments::positive(argc, argv, 1, 8192, usage);
  const int64_t ranks = arguments::positive(argc, argv, 2, 4, usage);
  CountingAllocator::install();
  std::cout << length << " tokens\n";
  const Outcome alone =
      measured(1, "plain", [&] { return train_plainly(length); });
  for (const char* method : {"allgather", "alltoall", "ulysses"}) {
    const Outcome together = train_on(ranks, length, method);
    const double share = compare(together, alone);
    std::cout << "          " << std::setprecision(2) << share
              << " of the memory of one rank\n";
    if (length >= 8192 && ranks == 4) {
      CHECK_THAT(share <= 0.35);
    }
  }
}
