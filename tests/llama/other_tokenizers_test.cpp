// SPDX-License-Identifier: BSD-3-Clause
// Compares the tokens of public models, if their files are present, with those
// of the Python package tokenizers.
#include "examples/embed/wordpiece.h"
#include "examples/llama/tokenizer.h"
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

class OtherTokenizers : public ::testing::Test {
 protected:
  // Returns texts and their tokens, or nothing if the model or the package is
  // missing.
  nlohmann::json truth_of(const std::string& kind, const std::string& model) {
    if (!std::ifstream(model)) {
      return {};
    }
    const auto out = folder_ / "truth.json";
    const auto command = std::string(DTENSOR_PYTHON) + " " + DTENSOR_TESTS_DIR +
        "/llama/other_tokenizers.py " + out + " " + kind + " " + model +
        " >/dev/null";
    const int status = std::system(command.c_str());
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
      return {};
    }
    EXPECT_EQ(status, 0) << command;
    return nlohmann::json::parse(std::ifstream(out));
  }

 private:
  Folder folder_;
};

#define SKIP_WITHOUT(truth)                                                  \
  if ((truth).empty())                                                       \
  GTEST_SKIP() << "no model or no package tokenizers; `make models` brings " \
                  "both"

TEST_F(OtherTokenizers, MakeTheSamePairsOfBytes) {
  const auto all = truth_of("gguf", DTENSOR_SMOLLM2);
  SKIP_WITHOUT(all);
  EXPECT_GT(all.size(), 500U);
  const Tokenizer tokenizer(*dtensor::open_weights(DTENSOR_SMOLLM2));
  for (const auto& truth : all) {
    const std::string text = truth.at("text");
    const Tokens tokens = truth.at("tokens");
    EXPECT_EQ(tokenizer.encode(text), tokens) << text;
    std::string back;
    for (const auto token : tokens) {
      back += tokenizer.decode(token);
    }
    if (truth.at("is_plain")) { // control tokens are not text
      EXPECT_EQ(back, text);
    }
  }
}

TEST_F(OtherTokenizers, MakeTheSameWordPieces) {
  const auto all = truth_of("words", DTENSOR_MINILM);
  SKIP_WITHOUT(all);
  EXPECT_GT(all.size(), 500U);
  const embed::WordPiece tokenizer(std::string(DTENSOR_MINILM) + "/vocab.txt");
  for (const auto& truth : all) {
    const std::string text = truth.at("text");
    const Tokens tokens = truth.at("tokens");
    EXPECT_EQ(tokenizer.encode(text, 100000), tokens) << text;
    Tokens cut = tokens;
    if (tokens.size() > 5) {
      cut = {tokens.begin(), tokens.begin() + 4};
      cut.push_back(tokens.back());
    }
    EXPECT_EQ(tokenizer.encode(text, 5), cut) << text;
  }
}

} // namespace TEST_SOURCE
} // namespace llama
