// SPDX-License-Identifier: BSD-3-Clause
// A step of training on one long sequence, which no rank has whole: by each
// method, loss and gradients are those of plain attention on one rank, and each
// of n ranks needs little more than 1/n of its memory.
//
//   long_context [tokens] [ranks]        8192 tokens on 4 ranks
//
// docs/guides/long_context.md has pieces of it.
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

// What a step leaves, and what it took.
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

// Alike on every rank.
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

// One rank's step. The mesh may be of one rank.
Outcome train(const DeviceMesh& mesh, int64_t length) {
  torch::manual_seed(0);
  Decoder model(kVocabulary, length);
  Batch batch(length);
  // [step]
  // In the scope, a rank has its tokens of these three, and attention sees
  // those of all.
  const auto scope = context_parallel(
      mesh,
      {.buffers = {batch.ids, batch.positions, batch.labels},
       .buffer_seq_dims = {1, 0, 1}});
  const auto logits = model(batch.ids, batch.positions);
  const auto loss = sum_of_losses(logits, batch.labels) / length;
  loss.backward();

  // What ranks have is of their tokens.
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

// The same by plain attention, on one rank.
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

// Notes what the tensors of each rank took, and prints it.
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

// How much of the memory of one rank each of several needs.
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
