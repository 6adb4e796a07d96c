// SPDX-License-Identifier: BSD-3-Clause
// Runs an unmodified torch::nn::TransformerEncoder on 1, 2, 3 and 4 ranks, with
// the same results, and prints the communication.
#include "check.h"

#include <dtensor/dtensor.h>
#include <torch/torch.h>

#include <iostream>

using namespace dtensor;

constexpr int64_t kWidth = 48;
constexpr int64_t kHeads = 12; // divisible by 1, 2, 3 and 4 ranks

torch::nn::TransformerEncoder make_encoder() {
  torch::manual_seed(0); // every rank starts from the same model
  torch::nn::TransformerEncoder encoder(torch::nn::TransformerEncoderOptions(
      torch::nn::TransformerEncoderLayer(
          torch::nn::TransformerEncoderLayerOptions(kWidth, kHeads)
              .dim_feedforward(96)
              .dropout(0)),
      2));
  encoder->to(torch::kDouble);
  return encoder;
}

const ParallelizePlan kPlan = {
    {"layers.*.self_attn", AttentionParallel()},
    {"layers.*.linear1", ColwiseParallel({.use_local_output = false})},
    {"layers.*.linear2", RowwiseParallel()},
};

// Masks two sentences, the second of which ends after three words.
torch::Tensor padding() {
  auto mask = torch::zeros({2, 5}, torch::kBool);
  mask[1].slice(0, 3).fill_(true);
  return mask;
}

// Returns the output, and the gradient of the first layer's q, k and v.
std::pair<torch::Tensor, torch::Tensor> run(
    torch::nn::TransformerEncoder& encoder,
    const torch::Tensor& x) {
  const auto y = encoder->forward(x, {}, padding());
  y.square().sum().backward();
  const auto& weights = encoder->named_parameters();
  return {
      y.detach(),
      full_tensor(weights["layers.0.self_attn.in_proj_weight"].grad())};
}

int main() {
  const auto x = torch::randn({5, 2, kWidth}, torch::kDouble);
  auto alone = make_encoder();
  const auto expected = run(alone, x);
  const auto& truth = expected.first;
  const auto& gradient = expected.second;
  for (const int64_t ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [&](int64_t rank) {
      const auto mesh = init_device_mesh(torch::kCPU, {ranks}, {"tp"});
      auto encoder = make_encoder();
      parallelize_module(*encoder, mesh, kPlan);
      const auto masks = implicit_replication(); // the mask is a plain tensor
      const CommDebugMode comm;
      const auto y = encoder->forward(x, {}, padding());
      const auto forward = comm.get_total_counts();
      const auto [again, mine] = run(encoder, x);
      CHECK_THAT(torch::allclose(y, truth, 0, 1e-12));
      CHECK_THAT(torch::allclose(again, truth, 0, 1e-12));
      CHECK_THAT(torch::allclose(mine, gradient, 0, 1e-10));
      CHECK_THAT(forward == (ranks == 1 ? 0 : 4)); // two per layer
      if (rank == 0) {
        std::cout << ranks << (ranks == 1 ? " rank:  " : " ranks: ")
                  << "difference " << (y - truth).abs().max().item<double>()
                  << ", " << forward << " collectives forward\n";
      }
    });
  }
}
