// SPDX-License-Identifier: BSD-3-Clause
#include "tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <limits>
#include <memory>
#include <stdexcept>

namespace llama {
namespace {

// GPT-2 spells each byte by a letter: those that print by themselves, the
// others by 256 and up.
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

// What the letters of a token spell.
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
      return token; // no spelling: a token that was added as it is
    }
    text += found->second;
    i += length;
  }
  return text;
}

// Cuts texts at what a pattern finds; what lies between are pieces too.
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
      throw std::runtime_error("a pattern that PCRE2 does not take");
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

// Digits are alone, as in SmolLM.
std::vector<std::string> pieces_of(const std::string& text) {
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

} // namespace

Tokenizer::Tokenizer(const dtensor::WeightFile& file) {
  const auto& about = file.metadata();
  const auto model = about.find("tokenizer.ggml.model");
  if (model == about.end()) {
    return;
  }
  if (std::get<std::string>(model->second) != "gpt2") {
    throw std::runtime_error(
        file.path() + ": a vocabulary of the kind " +
        std::get<std::string>(model->second) + ", and gpt2 alone is known");
  }
  using Texts = std::vector<std::string>;
  tokens_ = std::get<Texts>(about.at("tokenizer.ggml.tokens"));
  const auto& kinds =
      std::get<std::vector<int64_t>>(about.at("tokenizer.ggml.token_type"));
  constexpr int64_t kControl = 3;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    if (kinds[i] == kControl) {
      controls_[tokens_[i]] = static_cast<int64_t>(i);
    }
    numbers_[tokens_[i]] = static_cast<int64_t>(i);
  }
  for (const auto& merge : std::get<Texts>(about.at("tokenizer.ggml.merges"))) {
    ranks_.emplace(merge, static_cast<int64_t>(ranks_.size()));
  }
  end_ = std::get<int64_t>(about.at("tokenizer.ggml.eos_token_id"));
}

// The pair that was learned first is merged first.
void Tokenizer::encode_piece(
    const std::string& piece,
    std::vector<int64_t>& out) const {
  std::vector<std::string> parts;
  for (const auto c : piece) {
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

std::vector<int64_t> Tokenizer::encode(const std::string& text) const {
  std::vector<int64_t> out;
  if (tokens_.empty()) {
    for (const auto c : text) {
      out.push_back(static_cast<uint8_t>(c));
    }
    return out;
  }
  size_t begin = 0;
  while (begin < text.size()) {
    size_t next = text.size();
    const std::pair<const std::string, int64_t>* control = nullptr;
    for (const auto& candidate : controls_) {
      const auto at = text.find(candidate.first, begin);
      if (at < next) {
        next = at;
        control = &candidate;
      }
    }
    for (const auto& piece : pieces_of(text.substr(begin, next - begin))) {
      encode_piece(piece, out);
    }
    begin = next;
    if (control != nullptr) {
      out.push_back(control->second);
      begin += control->first.size();
    }
  }
  return out;
}

std::string Tokenizer::decode(int64_t token) const {
  if (tokens_.empty()) {
    return std::string(1, static_cast<char>(token));
  }
  const auto& text = tokens_.at(static_cast<size_t>(token));
  return controls_.count(text) != 0 ? std::string() : bytes_of(text);
}

std::string Tokenizer::chat(const std::string& text) const {
  if (controls_.count("<|im_start|>") == 0) {
    return text;
  }
  return "<|im_start|>user\n" + text + "<|im_end|>\n<|im_start|>assistant\n";
}

} // namespace llama
