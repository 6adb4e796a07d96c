// SPDX-License-Identifier: BSD-3-Clause
// Text as a tensor of character ids.
#pragma once

#include <torch/torch.h>

#include <string>

namespace gpt {

/// A text and its alphabet: ids are positions in the sorted alphabet.
struct Text {
  std::string alphabet;
  torch::Tensor ids; // (n), int64

  int64_t vocab() const {
    return static_cast<int64_t>(alphabet.size());
  }
  std::string decode(const torch::Tensor& numbers) const;
};

/// Reads a text file. For an empty path, reads English text that Debian always
/// has: the licences in /usr/share/common-licenses.
Text read_text(const std::string& path);

/// Returns inputs and targets (batch, block) of one step. They depend only on
/// the arguments, so they are equal on all ranks.
std::pair<torch::Tensor, torch::Tensor>
batch_of(const Text& text, int64_t batch, int64_t block, uint64_t seed);

} // namespace gpt
