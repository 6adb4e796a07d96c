// SPDX-License-Identifier: BSD-3-Clause
// Tests examples/llama: the tokens and logits of ranks equal those of the same
// modules without ranks.
#include "examples/llama/generate.h"
#include "examples/llama/load.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace llama {
namespace TEST_SOURCE {

// Returns the model as plain modules, without ranks.
Llama plain_model(const Config& config, int64_t ranks) {
  Llama plain(config);
  dtensor::Ranks living(ranks);
  living.run([&](int64_t rank) {
    dtensor::manual_seed(0);
    const auto mesh = dtensor::init_device_mesh(at::kCPU, {ranks}, {"tp"});
    const auto parts = make_model(config, mesh, nullptr);
    const auto state =
        dtensor::get_model_state_dict(*parts, {.full_state_dict = true});
    if (rank == 0) {
      dtensor::set_model_state_dict(*plain, state);
    }
  });
  return plain;
}

double largest(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

// Compares with one prompt at a time, recomputed in full for each token: no
// cache, no padding.
void expect_as_plain(const Config& config, double tolerance) {
  const std::vector<Tokens> prompts = {{1, 2, 3, 4, 5, 6, 7}, {8, 9}, {10}};
  const torch::NoGradGuard no_grad;
  auto plain = plain_model(config, 1);
  for (const int64_t ranks : {1, 2, 3, 4, 5}) {
    const auto made =
        Generator(config, ranks, nullptr)(prompts, {.tokens = 6}, true);
    for (size_t b = 0; b < prompts.size(); ++b) {
      auto ids = prompts[b];
      for (size_t step = 0; step < 6; ++step) {
        State state;
        const auto truth = plain(
            torch::tensor(ids).unsqueeze(0),
            torch::zeros({1}, torch::kLong),
            state);
        EXPECT_LE(
            largest(made.logits[step][static_cast<int64_t>(b)], truth[0]),
            tolerance)
            << ranks << " ranks, prompt " << b << ", token " << step;
        ids.push_back(made.tokens[b][step]);
        EXPECT_EQ(ids.back(), truth[0].argmax().item<int64_t>());
      }
    }
    EXPECT_EQ(
        made.collectives,
        std::vector<int64_t>(6, ranks > 1 ? 2 * config.layers + 2 : 0));
  }
}

TEST(Llama, AnswersAsThePlainModules) {
  expect_as_plain({.dtype = at::kDouble}, 1e-12);
  expect_as_plain({.dtype = at::kFloat}, 1e-4);
}

// Up to five ranks share two key heads of eight query heads.
TEST(Llama, SharesKeyHeadsThatAreFewerThanRanks) {
  expect_as_plain(
      {.width = 64, .heads = 8, .key_heads = 2, .dtype = at::kDouble}, 1e-12);
  expect_as_plain(
      {.width = 60, .heads = 6, .key_heads = 1, .dtype = at::kDouble}, 1e-12);
}

TEST(Llama, HasTheSameRandomWeightsOnAnyNumberOfRanks) {
  const Config config{.dtype = at::kDouble};
  const auto truth = dtensor::get_model_state_dict(*plain_model(config, 1));
  for (const int64_t ranks : {2, 3, 4}) {
    const auto mine =
        dtensor::get_model_state_dict(*plain_model(config, ranks));
    for (const auto& item : truth) {
      EXPECT_TRUE(at::equal(mine[item.key()], item.value())) << item.key();
    }
  }
}

} // namespace TEST_SOURCE
} // namespace llama
