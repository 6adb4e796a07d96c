// SPDX-License-Identifier: BSD-3-Clause
// How text becomes tokens, of one kind of vocabulary each. What controls (the
// end, who speaks) is not in the text that they get (tokenizer.h).
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
  /// The bytes of one token.
  virtual std::string decode(int64_t token) const = 0;
};
using VocabularyPtr = std::shared_ptr<const Vocabulary>;

/// Of each kind what a GGUF file says of it; throws std::runtime_error if that
/// is not complete.

/// "gpt2": words are cut by a pattern, and the bytes of each are merged, first
/// the pair that was learned first.
VocabularyPtr byte_pairs(const dtensor::WeightFile& file);

/// "llama": sentencepiece's. A space is a letter, texts begin with one, and the
/// letters are merged, first the pair that makes the token of the highest
/// score. A letter that is no token is its bytes.
VocabularyPtr sentence_pieces(const dtensor::WeightFile& file);

/// What the file has under "tokenizer.ggml." + `key`, of the type T; null if it
/// has none of that type.
template <class T>
const T* find_of_tokens(
    const dtensor::WeightFile& file,
    const std::string& key) {
  const auto found = file.metadata().find("tokenizer.ggml." + key);
  return found == file.metadata().end() ? nullptr
                                        : std::get_if<T>(&found->second);
}
/// The same, which has to be there.
template <class T>
const T& of_tokens(const dtensor::WeightFile& file, const std::string& key) {
  const auto* found = find_of_tokens<T>(file, key);
  if (found == nullptr) {
    throw std::runtime_error(
        file.path() + ": a vocabulary without tokenizer.ggml." + key);
  }
  return *found;
}

/// Kinds of tokens, as files number them.
enum TokenKind : int64_t {
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

} // namespace llama
