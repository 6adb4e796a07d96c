// SPDX-License-Identifier: BSD-3-Clause
#include "text.h"

#include <dtensor/error.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

namespace gpt {
namespace {

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  DTENSOR_CHECK_VALUE(
      file.good(),
      "[read_text] cannot read \"{}\". Pass a text file with --text.",
      path.string());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string default_text() {
  std::set<std::filesystem::path> files; // sorted, without links
  for (const auto& entry :
       std::filesystem::directory_iterator("/usr/share/common-licenses")) {
    if (entry.is_regular_file() && !entry.is_symlink()) {
      files.insert(entry.path());
    }
  }
  std::string text;
  for (const auto& file : files) {
    text += read_file(file) + "\n";
  }
  return text;
}

} // namespace

std::string Text::decode(const torch::Tensor& numbers) const {
  std::string text;
  const auto flat = numbers.flatten();
  for (int64_t i = 0; i < flat.numel(); ++i) {
    text += alphabet[static_cast<size_t>(flat[i].item<int64_t>())];
  }
  return text;
}

Text read_text(const std::string& path) {
  const auto text = path.empty() ? default_text() : read_file(path);
  const std::set<char> letters(text.begin(), text.end());
  Text result;
  result.alphabet.assign(letters.begin(), letters.end());
  std::vector<int64_t> ids;
  ids.reserve(text.size());
  for (const char c : text) {
    ids.push_back(static_cast<int64_t>(result.alphabet.find(c)));
  }
  result.ids = torch::tensor(ids, torch::kLong);
  return result;
}

std::pair<torch::Tensor, torch::Tensor>
batch_of(const Text& text, int64_t batch, int64_t block, uint64_t seed) {
  DTENSOR_CHECK_VALUE(
      text.ids.numel() > block,
      "[batch_of] the text has {} characters, and one sequence takes {}. Use a "
      "longer text or a smaller --block.",
      text.ids.numel(),
      block + 1);
  const auto generator = at::detail::createCPUGenerator(seed);
  const auto starts = torch::randint(
      text.ids.numel() - block, {batch}, generator, torch::kLong);
  std::vector<torch::Tensor> inputs;
  std::vector<torch::Tensor> targets;
  for (int64_t i = 0; i < batch; ++i) {
    const auto begin = starts[i].item<int64_t>();
    inputs.push_back(text.ids.narrow(0, begin, block));
    targets.push_back(text.ids.narrow(0, begin + 1, block));
  }
  return {torch::stack(inputs), torch::stack(targets)};
}

} // namespace gpt
