// SPDX-License-Identifier: BSD-3-Clause
// Text to tokens and back, by what a GGUF file says: pairs of bytes as GPT-2
// has them, or sentencepiece's. Without a vocabulary a token is a byte.
#pragma once

#include "vocabulary.h"

#include <dtensor/weights/weight_file.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace llama {

class Tokenizer {
 public:
  /// Bytes.
  Tokenizer() = default;
  /// Throws std::runtime_error for a vocabulary of another kind, and for one
  /// that is not complete.
  explicit Tokenizer(const dtensor::WeightFile& file);

  /// With the token that texts begin with, if the vocabulary has one for that.
  std::vector<int64_t> encode(const std::string& text) const;
  /// The bytes of one token; nothing for one that controls. A sentencepiece
  /// begins a text with a space.
  std::string decode(int64_t token) const;
  /// Whether the text ends with it.
  bool is_end(int64_t token) const {
    return token == end_;
  }
  /// As one who asks says it to a model that answers, if the file has such
  /// tokens.
  std::string chat(const std::string& text) const;

 private:
  VocabularyPtr vocabulary_; // null: bytes
  std::map<std::string, int64_t> controls_;
  std::vector<bool> is_control_;
  int64_t begin_ = -1; // none
  int64_t end_ = -1;
};

} // namespace llama
