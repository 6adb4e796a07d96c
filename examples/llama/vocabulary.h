// SPDX-License-Identifier: BSD-3-Clause
// Conversion of text to tokens, one class per kind of vocabulary. The text
// contains no control tokens (end of text, roles); see tokenizer.h.
#pragma once

#include <dtensor/weights/weight_file.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

namespace llama {

class Vocabulary {
 public:
  virtual ~Vocabulary() = default;
  /// Appends the tokens of `text`.
  virtual void encode(const std::string& text, std::vector<int64_t>& out)
      const = 0;
  /// Returns the bytes of one token.
  virtual std::string decode(int64_t token) const = 0;
};
using VocabularyPtr = std::shared_ptr<const Vocabulary>;

/// The following functions read one kind of vocabulary from a GGUF file. They
/// throw std::runtime_error if the vocabulary is incomplete.

/// "gpt2": words are split by a pattern, and the bytes of each word are merged.
/// The pair that was learned first is merged first.
VocabularyPtr byte_pairs(const dtensor::WeightFile& file);

/// "llama": sentencepiece. A space is a letter, and texts begin with a space.
/// Letters are merged. The pair whose token has the highest score is merged
/// first. A letter that is not a token is encoded as its bytes.
VocabularyPtr sentence_pieces(const dtensor::WeightFile& file);

/// Returns the file's value of "tokenizer.ggml." + `key` with type T, or null
/// if the file has no such value of this type.
template <class T>
const T* find_of_tokens(
    const dtensor::WeightFile& file,
    const std::string& key) {
  const auto found = file.metadata().find("tokenizer.ggml." + key);
  return found == file.metadata().end() ? nullptr
                                        : std::get_if<T>(&found->second);
}
/// Returns the value as find_of_tokens() does. Throws if there is no such
/// value.
template <class T>
const T& of_tokens(const dtensor::WeightFile& file, const std::string& key) {
  const auto* found = find_of_tokens<T>(file, key);
  if (found == nullptr) {
    throw std::runtime_error(
        file.path() + ": a vocabulary without tokenizer.ggml." + key);
  }
  return *found;
}

/// Kinds of tokens, with the numbers in GGUF files.
enum TokenKind : int64_t {
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

} // namespace llama
