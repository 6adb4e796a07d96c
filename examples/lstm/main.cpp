// SPDX-License-Identifier: BSD-3-Clause
// A language model with an LSTM of torch::nn, trained on one rank, with its
// batch sharded, and with its embedding and its logits sharded over the
// vocabulary. All runs have the same losses.
//
//   lstm [steps]          20 steps
#include <examples/arguments.h>
#include <examples/losses.h>

#include <torch/torch.h>

using namespace dtensor;
namespace nn = torch::nn;

constexpr int64_t kVocabulary = 30;
constexpr int64_t kFeatures = 12;

struct LanguageModelImpl : nn::Module {
  LanguageModelImpl()
      : embedding(register_module(
            "embedding",
            nn::Embedding(kVocabulary, kFeatures))),
        lstm(register_module(
            "lstm",
            nn::LSTM(nn::LSTMOptions(kFeatures, kFeatures)
                         .num_layers(2)
                         .batch_first(true)))),
        head(register_module("head", nn::Linear(kFeatures, kVocabulary))) {}
  // Returns the logits of the tokens that follow `tokens`, (samples, time).
  torch::Tensor forward(const torch::Tensor& tokens) {
    return head(std::get<0>(lstm(embedding(tokens))));
  }
  nn::Embedding embedding;
  nn::LSTM lstm;
  nn::Linear head;
};
TORCH_MODULE(LanguageModel);

/// Distributes a model and its tokens.
using Distribute = std::function<
    void(LanguageModel&, torch::Tensor& tokens, const DeviceMesh&)>;

void shard_batch(
    LanguageModel& model,
    torch::Tensor& tokens,
    const DeviceMesh& mesh) {
  distribute_module(*model, mesh); // replicates parameters
  tokens = distribute_tensor(tokens, mesh, {Shard(0)});
}

void shard_vocabulary(
    LanguageModel& model,
    torch::Tensor& tokens,
    const DeviceMesh& mesh) {
  parallelize_module(
      *model,
      mesh,
      {{"embedding", RowwiseParallel({.use_local_output = false})},
       {"head", ColwiseParallel({.use_local_output = false})}});
  distribute_module(*model, mesh);
  tokens = distribute_tensor(tokens, mesh, {Replicate()});
}

// Sentences in which each token follows from the one before it.
torch::Tensor sentences() {
  std::vector<torch::Tensor> tokens{torch::arange(8) * 3};
  while (tokens.size() < 12) {
    tokens.push_back((tokens.back() * 7 + 2).remainder(kVocabulary));
  }
  return torch::stack(tokens, 1); // (samples, time)
}

std::vector<double>
train(int64_t steps, const Distribute& distribute, int64_t ranks) {
  torch::manual_seed(0);
  LanguageModel model;
  model->to(torch::kDouble);
  auto tokens = sentences();
  if (distribute) {
    distribute(model, tokens, init_device_mesh(torch::kCPU, {ranks}));
  }
  torch::optim::AdamW optimizer(
      model->parameters(), torch::optim::AdamWOptions(0.01));
  const auto time = tokens.size(1);
  return losses::of_steps(*model, steps, optimizer, [&] {
    const auto logits = model(tokens.narrow(1, 0, time - 1));
    return torch::cross_entropy_loss(
        logits.flatten(0, 1), tokens.narrow(1, 1, time - 1).flatten());
  });
}

int main(int argc, char** argv) {
  const std::string usage = "[steps, default 20]";
  arguments::check(argc, argv, 1, usage);
  const int64_t steps = arguments::positive(argc, argv, 1, 20, usage);
  const auto run = [&](const Distribute& distribute, int64_t ranks) {
    return losses::of_ranks(
        ranks, [&] { return train(steps, distribute, ranks); });
  };
  const auto alone = run(nullptr, 1);
  losses::print(alone);
  for (const int64_t ranks : {2, 4}) {
    const auto on = std::to_string(ranks) + " ranks, ";
    losses::compare(on + "batch sharded", run(shard_batch, ranks), alone);
    losses::compare(
        on + "vocabulary sharded", run(shard_vocabulary, ranks), alone);
  }
}
