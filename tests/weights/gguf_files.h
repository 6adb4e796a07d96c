// SPDX-License-Identifier: BSD-3-Clause
// GGUF files for tests, built part by part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace dtensor::test_weights {

constexpr uint32_t kF32 = 0, kUint8 = 0, kInt8 = 1, kUint16 = 2, kUint32 = 4,
                   kBool = 7, kText = 8, kArray = 9, kUint64 = 10;

template <class Number>
std::string bytes_of(Number number) {
  return {reinterpret_cast<const char*>(&number), sizeof(number)};
}

/// Returns a text after its length.
inline std::string text_of(const std::string& text) {
  return bytes_of<uint64_t>(text.size()) + text;
}

/// Returns a pair of the metadata.
inline std::string
pair_of(const std::string& key, uint32_t type, const std::string& value) {
  return text_of(key) + bytes_of(type) + value;
}

/// Returns the entry of a tensor with one dimension.
inline std::string tensor_of(
    const std::string& name,
    uint64_t size,
    uint32_t type,
    uint64_t offset) {
  return text_of(name) + bytes_of<uint32_t>(1) + bytes_of(size) +
      bytes_of(type) + bytes_of(offset);
}

struct GgufParts {
  std::vector<std::string> pairs;
  std::vector<std::string> tensors;
  size_t alignment = 32;
  size_t data = 0; // number of bytes: 0, 1, 2, ...
};

/// Returns the bytes of a GGUF file.
inline std::string gguf_of(const GgufParts& parts) {
  auto bytes = "GGUF" + bytes_of<uint32_t>(3) +
      bytes_of<uint64_t>(parts.tensors.size()) +
      bytes_of<uint64_t>(parts.pairs.size());
  for (const auto* list : {&parts.pairs, &parts.tensors}) {
    for (const auto& item : *list) {
      bytes += item;
    }
  }
  bytes.resize(
      (bytes.size() + parts.alignment - 1) / parts.alignment * parts.alignment);
  for (size_t i = 0; i < parts.data; ++i) {
    bytes += static_cast<char>(i);
  }
  return bytes;
}

} // namespace dtensor::test_weights
