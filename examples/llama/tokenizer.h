// SPDX-License-Identifier: BSD-3-Clause
// Text to tokens and back, by what a GGUF file says: byte-level pair encoding
// as GPT-2 has it. Without such a vocabulary a token is a byte.
#pragma once

#include <dtensor/weights/weight_file.h>

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

namespace llama {

class Tokenizer {
 public:
  /// Bytes.
  Tokenizer() = default;
  /// Throws std::runtime_error for a vocabulary of another kind.
  explicit Tokenizer(const dtensor::WeightFile& file);

  std::vector<int64_t> encode(const std::string& text) const;
  /// The bytes of one token; nothing for one that controls.
  std::string decode(int64_t token) const;
  /// Whether the text ends with it.
  bool is_end(int64_t token) const {
    return token == end_;
  }
  /// As one who asks says it to a model that answers, if the file has such
  /// tokens.
  std::string chat(const std::string& text) const;

 private:
  void encode_piece(const std::string& piece, std::vector<int64_t>& out) const;

  std::vector<std::string> tokens_; // as the file spells them
  std::unordered_map<std::string, int64_t> numbers_;
  std::map<std::string, int64_t> controls_;
  std::unordered_map<std::string, int64_t> ranks_; // of merges: "left right"
  int64_t end_ = -1;
};

} // namespace llama
