// SPDX-License-Identifier: BSD-3-Clause
#include "vocabulary.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <limits>
#include <unordered_map>

namespace llama {
namespace {

// Returns GPT-2's letter for a byte: printable characters stand for themselves,
// other bytes are letters from 256 on.
std::string spelled(uint8_t byte) {
  static const auto letters = [] {
    std::array<std::string, 256> all;
    int next = 256;
    for (int b = 0; b < 256; ++b) {
      const bool prints = (b >= 33 && b <= 126) || (b >= 161 && b != 173);
      const int letter = prints ? b : next++;
      all[static_cast<size_t>(b)] = letter < 128
          ? std::string(1, static_cast<char>(letter))
          : std::string{
                static_cast<char>(0xC0 | (letter >> 6)),
                static_cast<char>(0x80 | (letter & 0x3F))};
    }
    return all;
  }();
  return letters[byte];
}

// Returns the bytes that the letters of a token stand for.
std::string bytes_of(const std::string& token) {
  static const auto bytes = [] {
    std::unordered_map<std::string, char> all;
    for (int b = 0; b < 256; ++b) {
      all[spelled(static_cast<uint8_t>(b))] = static_cast<char>(b);
    }
    return all;
  }();
  std::string text;
  for (size_t i = 0; i < token.size();) {
    const size_t length = (token[i] & 0x80) == 0 ? 1 : 2;
    const auto found = bytes.find(token.substr(i, length));
    if (found == bytes.end()) {
      return token; // not spelled: an added token
    }
    text += found->second;
    i += length;
  }
  return text;
}

// Splits texts at the matches of a pattern. Text between matches is kept as
// pieces too.
class Splitter {
 public:
  explicit Splitter(const char* pattern) {
    int error = 0;
    size_t at = 0;
    code_.reset(pcre2_compile(
        reinterpret_cast<PCRE2_SPTR>(pattern),
        PCRE2_ZERO_TERMINATED,
        PCRE2_UTF | PCRE2_UCP,
        &error,
        &at,
        nullptr));
    if (code_ == nullptr) {
      throw std::runtime_error("PCRE2 rejects the pattern");
    }
  }

  std::vector<std::string> operator()(const std::string& text) const {
    const std::unique_ptr<pcre2_match_data, Free> match(
        pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    std::vector<std::string> pieces;
    size_t begin = 0;
    while (begin < text.size() &&
           pcre2_match(
               code_.get(),
               reinterpret_cast<PCRE2_SPTR>(text.data()),
               text.size(),
               begin,
               0,
               match.get(),
               nullptr) > 0) {
      const auto* found = pcre2_get_ovector_pointer(match.get());
      if (found[0] > begin) {
        pieces.push_back(text.substr(begin, found[0] - begin));
      }
      pieces.push_back(text.substr(found[0], found[1] - found[0]));
      begin = found[1];
    }
    if (begin < text.size()) {
      pieces.push_back(text.substr(begin));
    }
    return pieces;
  }

 private:
  struct Free {
    void operator()(pcre2_code* code) const {
      pcre2_code_free(code);
    }
    void operator()(pcre2_match_data* data) const {
      pcre2_match_data_free(data);
    }
  };
  std::unique_ptr<pcre2_code, Free> code_;
};

// Splits into words. Digits are separate, as in SmolLM.
std::vector<std::string> words_of(const std::string& text) {
  static const Splitter digits(R"(\p{N})");
  static const Splitter words(
      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)");
  std::vector<std::string> all;
  for (const auto& part : digits(text)) {
    for (auto& piece : words(part)) {
      all.push_back(std::move(piece));
    }
  }
  return all;
}

class BytePairs final : public Vocabulary {
 public:
  explicit BytePairs(const dtensor::WeightFile& file)
      : tokens_(of_tokens<Texts>(file, "tokens")) {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      numbers_[tokens_[i]] = static_cast<int64_t>(i);
    }
    for (const auto& merge : of_tokens<Texts>(file, "merges")) {
      ranks_.emplace(merge, static_cast<int64_t>(ranks_.size()));
    }
  }

  void encode(const std::string& text, std::vector<int64_t>& out)
      const override {
    for (const auto& word : words_of(text)) {
      encode_word(word, out);
    }
  }
  std::string decode(int64_t token) const override {
    return bytes_of(tokens_.at(static_cast<size_t>(token)));
  }

 private:
  using Texts = std::vector<std::string>;
  void encode_word(const std::string& word, std::vector<int64_t>& out) const;

  Texts tokens_; // in the file's spelling
  std::unordered_map<std::string, int64_t> numbers_;
  std::unordered_map<std::string, int64_t> ranks_; // by merge: "left right"
};

// Merges the pair that was learned first.
void BytePairs::encode_word(const std::string& word, std::vector<int64_t>& out)
    const {
  std::vector<std::string> parts;
  for (const auto c : word) {
    parts.push_back(spelled(static_cast<uint8_t>(c)));
  }
  while (parts.size() > 1) {
    size_t best = 0;
    auto best_rank = std::numeric_limits<int64_t>::max();
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = ranks_.find(parts[i] + " " + parts[i + 1]);
      if (found != ranks_.end() && found->second < best_rank) {
        best = i;
        best_rank = found->second;
      }
    }
    if (best_rank == std::numeric_limits<int64_t>::max()) {
      break;
    }
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  for (const auto& part : parts) {
    out.push_back(numbers_.at(part));
  }
}

} // namespace

VocabularyPtr byte_pairs(const dtensor::WeightFile& file) {
  return std::make_shared<BytePairs>(file);
}

} // namespace llama
