// SPDX-License-Identifier: BSD-3-Clause
#include "tokenizer.h"

namespace llama {
namespace {

VocabularyPtr vocabulary_of(
    const dtensor::WeightFile& file,
    const std::string& kind) {
  if (kind == "gpt2") {
    return byte_pairs(file);
  }
  if (kind == "llama") {
    return sentence_pieces(file);
  }
  throw std::runtime_error(
      file.path() + ": unsupported vocabulary kind " + kind +
      " (supported: gpt2, llama)");
}

} // namespace

Tokenizer::Tokenizer(const dtensor::WeightFile& file) {
  const auto* kind = find_of_tokens<std::string>(file, "model");
  if (kind == nullptr) {
    return;
  }
  vocabulary_ = vocabulary_of(file, *kind);
  const auto& tokens = of_tokens<std::vector<std::string>>(file, "tokens");
  const auto& kinds = of_tokens<std::vector<int64_t>>(file, "token_type");
  if (kinds.size() != tokens.size()) {
    throw std::runtime_error(
        file.path() + ": " + std::to_string(tokens.size()) + " tokens with " +
        std::to_string(kinds.size()) + " kinds");
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    is_control_.push_back(kinds[i] == kControl);
    if (is_control_.back()) {
      controls_[tokens[i]] = static_cast<int64_t>(i);
    }
  }
  end_ = of_tokens<int64_t>(file, "eos_token_id");
  const auto* begins = find_of_tokens<bool>(file, "add_bos_token");
  if (begins != nullptr ? *begins : *kind == "llama") {
    begin_ = of_tokens<int64_t>(file, "bos_token_id");
  }
}

std::vector<int64_t> Tokenizer::encode(const std::string& text) const {
  std::vector<int64_t> out;
  if (vocabulary_ == nullptr) {
    for (const auto c : text) {
      out.push_back(static_cast<uint8_t>(c));
    }
    return out;
  }
  if (begin_ >= 0) {
    out.push_back(begin_);
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
    vocabulary_->encode(text.substr(begin, next - begin), out);
    begin = next;
    if (control != nullptr) {
      out.push_back(control->second);
      begin += control->first.size();
    }
  }
  return out;
}

std::string Tokenizer::decode(int64_t token) const {
  if (vocabulary_ == nullptr) {
    return std::string(1, static_cast<char>(token));
  }
  return is_control_.at(static_cast<size_t>(token))
      ? std::string()
      : vocabulary_->decode(token);
}

std::string Tokenizer::chat(const std::string& text) const {
  if (controls_.count("<|im_start|>") == 0) {
    return text;
  }
  return "<|im_start|>user\n" + text + "<|im_end|>\n<|im_start|>assistant\n";
}

} // namespace llama
