// SPDX-License-Identifier: BSD-3-Clause
// Tests generation in examples/llama: ranks that stay alive between calls,
// streamed tokens, and memory per token.
#include "examples/llama/generate.h"
#include "examples/llama/load.h"
#include "examples/long_context/counted_memory.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace llama {
namespace TEST_SOURCE {

const Config kConfig{.dtype = at::kDouble};

// Callbacks received by this thread during its life.
thread_local int64_t told_here = 0;

TEST(Generator, AnswersCallAfterCallOnRanksThatLiveOn) {
  const std::vector<std::vector<Tokens>> calls = {
      {{1, 2, 3, 4, 5}},
      {{6}, {7, 8, 9}, {10, 11}}, // a batch of prompts
      {{1, 2, 3, 4, 5}},
      {{12, 13}, {14}}};
  for (const int64_t ranks : {1, 2, 3}) {
    Generator generate(kConfig, ranks, nullptr);
    int64_t told = 0;
    int64_t by_first_rank = 0;
    for (const auto& prompts : calls) {
      const auto made =
          generate(prompts, {.tokens = 4, .on_token = [&](size_t, int64_t) {
                               ++told;
                               by_first_rank = ++told_here;
                             }});
      const auto second =
          Generator(kConfig, ranks, nullptr)(prompts, {.tokens = 4});
      EXPECT_EQ(made.tokens, second.tokens) << ranks << " ranks";
      EXPECT_EQ(made.collectives, second.collectives) << ranks << " ranks";
      EXPECT_EQ(by_first_rank, told) << "another thread";
    }
  }
}

// A call's seed alone determines its tokens, regardless of earlier draws.
TEST(Generator, DrawsBySeed) {
  Generator generate(kConfig, 2, nullptr);
  const auto drawn = [&](uint64_t seed) {
    return generate(
               {{1, 2}, {3}}, {.tokens = 8, .sampling = {1, 0.9}, .seed = seed})
        .tokens;
  };
  const auto first = drawn(1);
  EXPECT_NE(drawn(2), first);
  EXPECT_EQ(drawn(1), first);
}

using Told = std::vector<std::pair<size_t, int64_t>>;

// The callback receives the first tokens of all prompts, then the second
// tokens. Each token is received once, not once per rank.
TEST(Generator, ReportsTokensInOrder) {
  for (const int64_t ranks : {1, 3}) {
    Told told;
    const auto made = Generator(kConfig, ranks, nullptr)(
        {{1, 2, 3}, {4}},
        {.tokens = 5, .on_token = [&](size_t b, int64_t token) {
           told.emplace_back(b, token);
         }});
    Told expected;
    for (size_t i = 0; i < 5; ++i) {
      expected.emplace_back(0, made.tokens[0][i]);
      expected.emplace_back(1, made.tokens[1][i]);
    }
    EXPECT_EQ(told, expected);
  }
}

// The callback for a token can end the answer before the next token is chosen.
TEST(Generator, ReportsATokenBeforeTheNextIsChosen) {
  const auto all = Generator(kConfig, 1, nullptr)({{1, 2, 3}}, {.tokens = 8});
  Tokens told;
  const auto made = Generator(kConfig, 1, nullptr)(
      {{1, 2, 3}},
      {.tokens = 8,
       .is_end = [&](int64_t) { return told.size() == 3; },
       .on_token = [&](size_t, int64_t token) { told.push_back(token); }});
  EXPECT_EQ(told, Tokens(all.tokens[0].begin(), all.tokens[0].begin() + 3));
  EXPECT_EQ(made.tokens[0], told);
  EXPECT_EQ(made.passes, 3);
}

// Answers end independently. The other answers do not change.
TEST(Generator, EndsEachAnswerByItself) {
  for (const int64_t ranks : {1, 2}) {
    Generator generate(kConfig, ranks, nullptr);
    const std::vector<Tokens> prompts = {{1, 2, 3}, {4}};
    const auto all = generate(prompts, {.tokens = 6}).tokens;
    const auto end = all[0][2];
    const auto until = [&](const Tokens& tokens) {
      return Tokens(
          tokens.begin(), std::find(tokens.begin(), tokens.end(), end));
    };
    const auto made = generate(
        prompts,
        {.tokens = 6, .is_end = [=](int64_t token) { return token == end; }});
    EXPECT_EQ(made.tokens[0], until(all[0]));
    EXPECT_EQ(made.tokens[1], until(all[1]));
    EXPECT_LT(made.tokens[0].size(), 3U);
  }
}

// Maximum bytes allocated for one more token, and bytes of one layer's keys.
struct Taken {
  int64_t most;
  int64_t keys;
};

Taken taken_by_a_token(Llama& model, int64_t past) {
  const c10::InferenceMode inference;
  const auto no_padding = torch::zeros({1}, torch::kLong);
  const auto token = torch::ones({1, 1}, torch::kLong);
  State state;
  model(torch::ones({1, past}, torch::kLong), no_padding, state);
  model(token, no_padding, state);
  const auto before = state.caches;
  const auto account = std::make_shared<MemoryAccount>();
  memory_account = account;
  model(token, no_padding, state);
  memory_account = nullptr;
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(state.caches[i].keys.is_same(before[i].keys));
    EXPECT_TRUE(state.caches[i].values.is_same(before[i].values));
  }
  const auto& keys = before[0].keys;
  return {
      account->peak, keys.size(1) * past * keys.size(3) * keys.element_size()};
}

// Generating a token does not copy the cache, regardless of the context size
// and the number of tokens read.
TEST(Generator, ATokenCopiesNoCache) {
  CountingAllocator::install();
  for (const int64_t ranks : {1, 2, 3, 5}) {
    for (const int64_t key_heads : {9, 3}) {
      dtensor::run_ranks(ranks, [&](int64_t rank) {
        const auto mesh = dtensor::init_device_mesh(at::kCPU, {ranks}, {"tp"});
        auto model = make_model(
            {.width = 576, .key_heads = key_heads, .context = 4096},
            mesh,
            nullptr);
        const auto taken = taken_by_a_token(model, 3000);
        EXPECT_LT(taken.most, taken.keys / 4)
            << ranks << " ranks, rank " << rank << ", " << key_heads
            << " key heads";
      });
    }
  }
}

TEST(Generator, ReadsACacheWhereItIs) {
  const auto now = torch::ones({2, 3, 1, 4});
  const auto before = torch::zeros({2, 3, 5, 4});
  Positions at{0, 16, {}, {}, {}, true};
  torch::Tensor cache;
  const auto first = remember(cache, before, at);
  EXPECT_TRUE(first.is_alias_of(cache));
  EXPECT_EQ(cache.size(2), 16);
  at.past = 5;
  const auto* const memory = cache.data_ptr();
  const auto read = remember(cache, now, at);
  EXPECT_EQ(cache.data_ptr(), memory);
  EXPECT_TRUE(read.is_alias_of(cache));
  EXPECT_TRUE(at::equal(read, torch::cat({before, now}, 2)));
}

} // namespace TEST_SOURCE
} // namespace llama
