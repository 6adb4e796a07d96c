// SPDX-License-Identifier: BSD-3-Clause
// State dictionaries in files: dicts of names and plain tensors in the format
// of Python's torch.save, which torch.load(weights_only=False) reads.
#pragma once

#include <dtensor/parallel/state_dict.h>
#include <torch/torch.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

// [files]
inline void save_state(
    const std::string& path,
    const dtensor::StateDict& state) {
  c10::Dict<std::string, torch::Tensor> values;
  for (const auto& item : state) {
    values.insert(item.key(), item.value());
  }
  const std::vector<char> bytes = torch::pickle_save(values);
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  TORCH_CHECK(file.good(), "cannot write ", path);
}

inline dtensor::StateDict load_state(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file.good(), "cannot read ", path);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  dtensor::StateDict state;
  for (const auto& item : torch::pickle_load(bytes).toGenericDict()) {
    state.insert(item.key().toStringRef(), item.value().toTensor());
  }
  return state;
}
// [/files]
