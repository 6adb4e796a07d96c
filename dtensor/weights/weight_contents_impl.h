// SPDX-License-Identifier: BSD-3-Clause
// What the readers of formats fill, and WeightFile reads from.
#pragma once

#include <dtensor/weights/mapped_file_impl.h>
#include <dtensor/weights/weight_file.h>
#include <dtensor/weights/weight_format_impl.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace dtensor {
namespace detail {

/// A weight of more is none: their number, and that of their bytes, would not
/// fit.
constexpr uint64_t kMostElements = uint64_t{1} << 48;

/// Where the bytes of a weight are, and what they mean.
struct StoredWeight {
  const std::byte* data = nullptr;
  const WeightFormat* format = nullptr; // null: it cannot be read
};

} // namespace detail

struct WeightFile::Contents {
  std::string path;
  std::vector<WeightInfo> weights;
  std::vector<detail::StoredWeight> stored; // of each weight
  std::map<std::string, size_t, std::less<>> by_name;
  std::map<std::string, WeightMetadata> metadata;
  std::vector<std::unique_ptr<detail::MappedFile>> files;

  /// Throws ValueError for a name that is there, and for bytes outside of
  /// `file`, which begin at `offset`. Without a format it can only be listed.
  void add(
      WeightInfo info,
      const detail::WeightFormat* format,
      const detail::MappedFile& file,
      uint64_t offset);
};

namespace detail {

/// Adds what the file holds. They throw ValueError for one that is malformed.
void read_safetensors(WeightFile::Contents& contents, const std::string& path);
void read_safetensors_index(
    WeightFile::Contents& contents,
    const std::string& path);
void read_gguf(WeightFile::Contents& contents, const std::string& path);

} // namespace detail
} // namespace dtensor
