// SPDX-License-Identifier: BSD-3-Clause
// examples/llama: the tokens and logits of ranks against the same modules on no
// ranks, and those of SmolLM2, if its file is there, against plain PyTorch.
#include "examples/llama/generate.h"
#include "examples/llama/load.h"
#include "examples/llama/tokenizer.h"
#include "tests/weights/files.h"
#include "tests/weights/touched_pages.h"

#include <dtensor/testing/fake_world.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <filesystem>
#include <numeric>

namespace llama {
namespace TEST_SOURCE {

using dtensor::test_weights::Folder;

// As Python has them, without ranks.
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

// One prompt by itself, all of it again for each token: no cache, no padding.
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
    if (ranks > 1) {
      EXPECT_EQ(made.collectives, 2 * config.layers + 2);
    }
  }
}

TEST(Llama, AnswersAsThePlainModules) {
  expect_as_plain({.dtype = at::kDouble}, 1e-12);
  expect_as_plain({.dtype = at::kFloat}, 1e-4);
}

// Eight query heads of which four share one of keys, on up to five ranks.
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

// Chosen from the whole logits, as Python programs do it.
at::Tensor chosen_from_whole(const at::Tensor& logits, const Sampling& how) {
  const auto p = (logits.to(at::kDouble) / how.temperature).softmax(-1);
  const auto order = p.argsort(/*stable=*/true, -1, true);
  auto kept = p.gather(-1, order);
  const auto before = kept.cumsum(-1) - kept;
  kept = kept.masked_fill(before >= how.top_p, 0);
  const auto sum = kept.cumsum(-1);
  const auto target =
      torch::rand({p.size(0), 1}, at::kDouble) * sum.slice(1, -1);
  return order.gather(-1, (sum <= target).sum(-1, true)).squeeze(-1);
}

TEST(Sampling, IsThatOfTheWholeLogits) {
  for (const int64_t ranks : {1, 2, 3, 7}) {
    dtensor::run_ranks(ranks, [&] {
      const auto mesh = dtensor::init_device_mesh(at::kCPU, {ranks}, {"tp"});
      for (const double spread : {0.1, 3.0, 20.0}) { // flat to peaked
        for (const double top_p : {0.01, 0.5, 0.9, 1.0}) {
          for (uint64_t seed = 0; seed < 5; ++seed) {
            auto generator = at::detail::createCPUGenerator(seed);
            const auto logits =
                at::randn({4, 1000}, generator, at::kDouble) * spread;
            const Sampling how{0.7, top_p};
            torch::manual_seed(seed);
            const auto mine = next_tokens(
                dtensor::distribute_tensor(
                    logits, mesh, {dtensor::Shard(1)}, std::nullopt),
                how);
            torch::manual_seed(seed);
            EXPECT_TRUE(at::equal(mine, chosen_from_whole(logits, how)))
                << ranks << " ranks, " << spread << ", " << top_p;
          }
        }
      }
    });
  }
}

// `make models` brings it.
std::string smollm2() {
  const auto* path = std::getenv("DTENSOR_SMOLLM2");
  return path == nullptr ? DTENSOR_SMOLLM2 : path;
}

class SlowSmolLM2 : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::ifstream(smollm2())) {
      GTEST_SKIP() << "no " << smollm2() << "; `make models` brings it";
    }
  }
};

void expect_as_python(
    const char* name,
    at::ScalarType dtype,
    double tolerance) {
  constexpr int64_t kTokens = 64;
  const Folder folder;
  const auto file = dtensor::open_weights(smollm2());
  const Tokenizer tokenizer(*file);
  const auto prompt = tokenizer.encode(tokenizer.chat("Why is the sky blue?"));
  std::string ids;
  for (const auto id : prompt) {
    ids += (ids.empty() ? "" : ",") + std::to_string(id);
  }
  const auto out = folder / "reference.pt";
  const auto command = std::string(DTENSOR_PYTHON) + " " + DTENSOR_TESTS_DIR +
      "/llama/reference.py " + smollm2() + " " + name + " " + ids + " " +
      std::to_string(kTokens) + " " + out;
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  const auto truth = dtensor::test_weights::saved_tensors(out);
  auto config = config_of(*file);
  config.context = 256;
  config.dtype = dtype;
  for (const int64_t ranks : {1, 2, 3, 4}) {
    const auto made =
        Generator(config, ranks, file)({prompt}, {.tokens = kTokens}, true);
    EXPECT_TRUE(at::equal(torch::tensor(made.tokens[0]), truth.at("tokens")))
        << ranks;
    const auto difference =
        largest(torch::cat(made.logits), truth.at("logits"));
    EXPECT_LE(difference, tolerance) << ranks << " ranks";
    EXPECT_LE(made.collectives, 62);
    std::cout << name << ", " << ranks << " ranks: logits within " << difference
              << ", " << made.collectives << " collectives a token\n";
  }
}

TEST_F(SlowSmolLM2, AnswersAsPlainPyTorchInFloat32) {
  expect_as_python("f32", at::kFloat, 1e-4);
}

TEST_F(SlowSmolLM2, AnswersAsPlainPyTorchInFloat64) {
  expect_as_python("f64", at::kDouble, 1e-9);
}

// Rows of o_proj and down_proj, which are cut by columns, are shorter than a
// page: every rank touches all of these, a quarter of the file.
TEST_F(SlowSmolLM2, ARankTouchesTheBytesOfItsParts) {
  const auto file = dtensor::open_weights(smollm2());
  const auto config = config_of(*file);
  const auto all = std::filesystem::file_size(smollm2());
  for (const size_t ranks : {2U, 4U}) {
    const auto size = static_cast<int64_t>(ranks);
    dtensor::testing::with_fake_world(0, size, [&] {
      const auto mesh = dtensor::init_device_mesh(at::kCPU, {size}, {"tp"});
      const dtensor::test_weights::TouchedPages pages(smollm2());
      make_model(config, mesh, file);
      EXPECT_LE(pages.bytes(), all / ranks + all / 4);
      std::cout << "of " << all << " bytes 1 of " << ranks << " ranks touches "
                << pages.bytes() << "\n";
    });
  }
}

TEST_F(SlowSmolLM2, ItsTokensAreTheText) {
  const Tokenizer tokenizer(*dtensor::open_weights(smollm2()));
  for (const std::string text :
       {"Hello, world!",
        "  two  spaces 42 and 3.14 ",
        "naïve 日本語 😀",
        "a\n\n b\t\tc",
        ""}) {
    std::string back;
    for (const auto token : tokenizer.encode(text)) {
      back += tokenizer.decode(token);
    }
    EXPECT_EQ(back, text);
  }
  EXPECT_EQ(tokenizer.encode("<|im_start|>user\n"), (Tokens{1, 4093, 198}));
}

} // namespace TEST_SOURCE
} // namespace llama
