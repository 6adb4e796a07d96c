// SPDX-License-Identifier: BSD-3-Clause
#include "merging.h"
#include "vocabulary.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace llama {
namespace {

constexpr std::string_view kSpace = "\u2581";
constexpr std::string_view kMalformed = "\uFFFD";

// Returns the bytes of the first letter of `text`, or 0 for invalid UTF-8.
size_t letter_length(std::string_view text) {
  utf8proc_int32_t letter = 0;
  const auto length = utf8proc_iterate(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
      static_cast<utf8proc_ssize_t>(text.size()),
      &letter);
  return length > 0 ? static_cast<size_t>(length) : 0;
}

// Replaces spaces by a letter, and adds one at the start if `adds_space`.
// Replaces invalid UTF-8 by the replacement character.
std::string spelled(const std::string& text, bool adds_space) {
  std::string letters(adds_space ? kSpace : "");
  for (size_t i = 0; i < text.size();) {
    const auto rest = std::string_view(text).substr(i);
    const auto length = letter_length(rest);
    letters += length == 0 ? kMalformed
        : rest[0] == ' '   ? kSpace
                           : rest.substr(0, length);
    i += std::max<size_t>(length, 1);
  }
  return letters;
}

class SentencePieces final : public Vocabulary {
 public:
  explicit SentencePieces(const dtensor::WeightFile& file);
  void encode(const std::string& text, std::vector<int64_t>& out)
      const override;
  std::string decode(int64_t token) const override;

 private:
  // Returns the length of the longest user-defined token that `text` begins
  // with.
  size_t defined_length(std::string_view text) const;
  void add_unknown(const std::string& piece, std::vector<int64_t>& out) const;

  std::vector<std::string> texts_;
  std::vector<int64_t> kinds_;
  MergedTokens tokens_;              // tokens that text may become
  std::vector<std::string> defined_; // user-defined tokens
  std::array<int64_t, 256> bytes_{}; // byte tokens; -1: none
  int64_t unknown_ = 0;
  bool adds_space_ = true;
};

SentencePieces::SentencePieces(const dtensor::WeightFile& file)
    : texts_(of_tokens<std::vector<std::string>>(file, "tokens")),
      kinds_(of_tokens<std::vector<int64_t>>(file, "token_type")) {
  const auto& scores = of_tokens<std::vector<double>>(file, "scores");
  if (kinds_.size() != texts_.size() || scores.size() != texts_.size()) {
    throw std::runtime_error(
        file.path() + ": " + std::to_string(texts_.size()) + " tokens with " +
        std::to_string(scores.size()) + " scores and " +
        std::to_string(kinds_.size()) + " kinds");
  }
  bytes_.fill(-1);
  for (size_t i = 0; i < texts_.size(); ++i) {
    const auto number = static_cast<int64_t>(i);
    const auto kind = kinds_[i];
    if (kind == kByte) { // <0x0A>
      bytes_.at(std::stoul(texts_[i].substr(3, 2), nullptr, 16)) = number;
    } else if (kind != kControl && kind != kUnknown) {
      tokens_[texts_[i]] = {number, scores[i], kind == kUnused};
    }
    if (kind == kUserDefined) {
      defined_.push_back(texts_[i]);
    }
  }
  if (const auto* id = find_of_tokens<int64_t>(file, "unknown_token_id")) {
    unknown_ = *id;
  }
  if (const auto* adds = find_of_tokens<bool>(file, "add_space_prefix")) {
    adds_space_ = *adds;
  }
}

size_t SentencePieces::defined_length(std::string_view text) const {
  size_t longest = 0;
  for (const auto& token : defined_) {
    if (token.size() > longest && text.starts_with(token)) {
      longest = token.size();
    }
  }
  return longest;
}

void SentencePieces::encode(const std::string& text, std::vector<int64_t>& out)
    const {
  if (text.empty()) {
    return;
  }
  const auto letters = spelled(text, adds_space_);
  Merging merging(tokens_);
  for (size_t i = 0; i < letters.size();) {
    const auto rest = std::string_view(letters).substr(i);
    const auto defined = defined_length(rest);
    const auto length = defined > 0 ? defined : letter_length(rest);
    merging.add(rest.substr(0, length), defined > 0);
    i += length;
  }
  bool was_unknown = false;
  merging.finish([&](const std::string& piece) {
    const auto found = tokens_.find(piece);
    const bool is_known = found != tokens_.end();
    if (is_known) {
      out.push_back(found->second.number);
    } else if (bytes_[0] >= 0 || !was_unknown) { // joins unknown letters
      add_unknown(piece, out);
    }
    was_unknown = !is_known;
  });
}

void SentencePieces::add_unknown(
    const std::string& piece,
    std::vector<int64_t>& out) const {
  if (bytes_[0] < 0) {
    out.push_back(unknown_);
    return;
  }
  for (const auto c : piece) {
    out.push_back(bytes_[static_cast<uint8_t>(c)]);
  }
}

std::string SentencePieces::decode(int64_t token) const {
  const auto& text = texts_.at(static_cast<size_t>(token));
  switch (kinds_[static_cast<size_t>(token)]) {
    case kByte:
      return std::string(
          1, static_cast<char>(std::stoul(text.substr(3, 2), nullptr, 16)));
    case kUnknown:
      return " \u2047 ";
    default:
      break;
  }
  std::string bytes;
  for (size_t i = 0; i < text.size();) {
    const bool is_space = text.compare(i, kSpace.size(), kSpace) == 0;
    bytes += is_space ? ' ' : text[i];
    i += is_space ? kSpace.size() : 1;
  }
  return bytes;
}

} // namespace

VocabularyPtr sentence_pieces(const dtensor::WeightFile& file) {
  return std::make_shared<SentencePieces>(file);
}

} // namespace llama
