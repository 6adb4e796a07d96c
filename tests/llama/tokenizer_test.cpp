// SPDX-License-Identifier: BSD-3-Clause
// Compares tokens from sentencepiece vocabularies in GGUF with those of
// sentencepiece itself.
#include "examples/llama/tokenizer.h"
#include "examples/llama/merging.h"
#include "tests/weights/files.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sys/wait.h>

#include <cstdlib>
#include <fstream>

namespace llama {
namespace TEST_SOURCE {

using dtensor::test_weights::Folder;
using Tokens = std::vector<int64_t>;

class SentencePieces : public ::testing::Test {
 protected:
  void SetUp() override {
    static const int status = std::system(
        (std::string(DTENSOR_PYTHON) + " " + DTENSOR_TESTS_DIR +
         "/llama/sentence_pieces.py " + (folder() / "") + " >/dev/null 2>&1")
            .c_str());
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
      GTEST_SKIP() << "Python has no sentencepiece or no gguf";
    }
    ASSERT_EQ(status, 0);
  }
  static const Folder& folder() {
    static const Folder once;
    return once;
  }
  static Tokenizer tokenizer(const std::string& name) {
    return Tokenizer(*dtensor::open_weights(folder() / (name + ".gguf")));
  }
  // Returns the error of opening the file, without the folder.
  static std::string refused(const std::string& name) {
    try {
      tokenizer(name);
    } catch (const std::runtime_error& error) {
      const std::string text = error.what();
      return text.substr(text.rfind('/') + 1);
    }
    return "";
  }
};

std::string decoded(const Tokenizer& tokenizer, const Tokens& tokens) {
  std::string text;
  for (const auto token : tokens) {
    text += tokenizer.decode(token);
  }
  return text;
}

std::string merged(const MergedTokens& tokens, const std::string& text) {
  Merging merging(tokens);
  for (size_t i = 0; i < text.size(); ++i) {
    merging.add(text.substr(i, 1), /*is_fixed=*/text[i] == '!');
  }
  std::string pieces;
  merging.finish([&](const std::string& piece) {
    pieces += (pieces.empty() ? "" : " ") + piece;
  });
  return pieces;
}

// A pair that becomes possible by a merge may be merged before all others.
TEST(Merging, TakesTheHighestScoreFirst) {
  const MergedTokens tokens = {
      {"ab", {0, 3, false}},
      {"cd", {1, 2, false}},
      {"abc", {2, 5, false}},
      {"aa", {3, 1, false}},
      {"!a", {4, 9, false}}};
  EXPECT_EQ(merged(tokens, "abcd"), "abc d");
  EXPECT_EQ(merged(tokens, "xcdab"), "x cd ab");
  EXPECT_EQ(merged(tokens, "aaaaa"), "aa aa a"); // the leftmost pair first
  EXPECT_EQ(merged(tokens, "!abc"), "! abc");
  EXPECT_EQ(merged(tokens, ""), "");
}

TEST(Merging, SplitsUnusedTokens) {
  const MergedTokens tokens = {
      {"ab", {0, 3, true}}, {"abc", {1, 2, true}}, {"abcd", {2, 1, false}}};
  EXPECT_EQ(merged(tokens, "abcd"), "abcd");
  EXPECT_EQ(merged(tokens, "abc"), "a b c");
}

TEST_F(SentencePieces, MatchTheirLibrary) {
  for (const std::string name : {"bytes", "defined", "unknown", "no_space"}) {
    const auto mine = tokenizer(name);
    std::ifstream file(folder() / (name + ".json"));
    for (const auto& truth : nlohmann::json::parse(file)) {
      const std::string text = truth.at("text");
      const Tokens tokens = truth.at("tokens");
      EXPECT_EQ(mine.encode(text), tokens) << name << ": " << text;
      const bool begins = name != "no_space" && !text.empty();
      EXPECT_EQ(
          decoded(mine, tokens),
          (begins ? " " : "") + truth.at("decoded").get<std::string>())
          << name << ": " << text;
    }
  }
}

// Invalid UTF-8 is tokenized like in sentencepiece's normalizer.
TEST_F(SentencePieces, OfInvalidUtf8) {
  const auto mine = tokenizer("bytes");
  const auto replaced = mine.encode("a\uFFFDb");
  EXPECT_EQ(
      mine.encode("a\xFF"
                  "b"),
      replaced);
  EXPECT_EQ(
      mine.encode("a\xC3"
                  "b"),
      replaced);
  EXPECT_EQ(
      mine.encode("a\xC0\x80"
                  "b"),
      mine.encode("a\uFFFD\uFFFDb"));
}

// Control tokens are found in the text, and tokenization restarts behind them.
TEST_F(SentencePieces, RestartAfterControlTokens) {
  const auto mine = tokenizer("bytes");
  auto expected = mine.encode("one");
  const auto second = mine.encode("two");
  expected.push_back(2); // </s>
  expected.insert(expected.end(), second.begin() + 1, second.end());
  EXPECT_EQ(mine.encode("one</s>two"), expected);
  EXPECT_TRUE(mine.is_end(2));
  EXPECT_EQ(mine.decode(2), "");
}

TEST_F(SentencePieces, RefuseIncompleteVocabularies) {
  EXPECT_EQ(
      refused("short"), "short.gguf: 700 tokens with 5 scores and 700 kinds");
  EXPECT_EQ(
      refused("other"),
      "other.gguf: unsupported vocabulary kind bert (supported: gpt2, llama)");
  EXPECT_EQ(
      refused("no_merges"),
      "no_merges.gguf: a vocabulary without tokenizer.ggml.merges");
}

} // namespace TEST_SOURCE
} // namespace llama
