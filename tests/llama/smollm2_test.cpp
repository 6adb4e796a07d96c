// SPDX-License-Identifier: BSD-3-Clause
// Compares the tokens and logits of SmolLM2 in examples/llama with those of
// plain PyTorch, if its file is present.
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

namespace llama {
namespace TEST_SOURCE {

using dtensor::test_weights::Folder;

double largest(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

// Returns the path of the file that `make models` downloads.
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

// A suite of its own, because each suite is an entry of ctest with a time limit
// of its own.
class SlowSmolLM2InFloat32 : public SlowSmolLM2 {};
class SlowSmolLM2InFloat64 : public SlowSmolLM2 {};

// Returns the number of all-reduces: two in each of 30 layers, one behind the
// embedding, and one for sampling.
std::vector<int64_t> all_passes_of(int64_t ranks, size_t passes) {
  return std::vector<int64_t>(passes, ranks > 1 ? 62 : 0);
}

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
    EXPECT_EQ(made.collectives, all_passes_of(ranks, kTokens));
    std::cout << name << ", " << ranks << " ranks: logits within " << difference
              << ", " << made.collectives.back() << " collectives a token\n";
  }
}

TEST_F(SlowSmolLM2InFloat32, AnswersAsPlainPyTorch) {
  expect_as_python("f32", at::kFloat, 1e-4);
}

TEST_F(SlowSmolLM2InFloat64, AnswersAsPlainPyTorch) {
  expect_as_python("f64", at::kDouble, 1e-9);
}

// For real logits, the 64 candidates of each rank are sufficient, so no logits
// are gathered.
TEST_F(SlowSmolLM2, TopPGathersNoLogits) {
  constexpr int64_t kTokens = 12;
  const auto file = dtensor::open_weights(smollm2());
  const Tokenizer tokenizer(*file);
  const auto prompt = tokenizer.encode(tokenizer.chat("Why is the sky blue?"));
  auto config = config_of(*file);
  config.context = 64;
  std::vector<Tokens> tokens;
  for (const int64_t ranks : {1, 2, 3}) {
    const auto made = Generator(config, ranks, file)(
        {prompt}, {.tokens = kTokens, .sampling = {0.7, 0.9}, .seed = 1});
    EXPECT_EQ(made.collectives, all_passes_of(ranks, kTokens)) << ranks;
    tokens.push_back(made.tokens[0]);
    EXPECT_EQ(tokens.back(), tokens.front()) << ranks;
  }
}

// A rank touches the bytes of its local shards. Shards of rows of o_proj and
// down_proj are shorter than a page, so every rank touches all of these
// weights, a quarter of the file.
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
