// SPDX-License-Identifier: BSD-3-Clause
// What the readers of formats fill, and WeightFile reads from.
#pragma once

#include <dtensor/weights/mapped_file_impl.h>
#include <dtensor/weights/weight_file.h>
#include <dtensor/weights/weight_format_impl.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace dtensor {
namespace detail {

/// Adds a dimension; false if the tensor has so many elements then that their
/// number, or that of their bytes, might not fit (a size of 0 counted as 1, so
/// that the order does not matter).
inline bool add_size(Sizes& sizes, uint64_t size) {
  uint64_t room = uint64_t{1} << 48;
  for (const auto before : sizes) {
    room /= static_cast<uint64_t>(std::max<int64_t>(before, 1));
  }
  if (size > room) {
    return false;
  }
  sizes.push_back(static_cast<int64_t>(size));
  return true;
}

/// Where the bytes of a weight are, and what they mean.
struct StoredWeight {
  const std::byte* data = nullptr;
  const WeightFormat* format = nullptr; // null: it cannot be read
  size_t bytes = 0;
  Sizes strides = {}; // in elements; none: one element after the other
  friend bool operator==(const StoredWeight&, const StoredWeight&) = default;
};

} // namespace detail

struct WeightFile::Contents {
  std::string path;
  std::vector<WeightInfo> weights;
  std::vector<detail::StoredWeight> stored; // of each weight
  std::map<std::string, size_t, std::less<>> by_name;
  std::map<std::string, WeightMetadata> metadata;
  std::vector<detail::MappedFilePtr> files;

  /// Throws ValueError for a name that is there, and for bytes outside of
  /// `file`, which begin at `offset`. Without a format it can only be listed.
  /// `strides` in elements, one for each dimension; none: it is contiguous.
  void add(
      WeightInfo info,
      const detail::WeightFormat* format,
      const detail::MappedFile& file,
      uint64_t offset,
      const Sizes& strides = {});
  /// One of `weights`.
  const detail::StoredWeight& stored_as(const WeightInfo& weight) const;
};

namespace detail {

/// Adds what the file holds, or the files that the index names. They throw
/// ValueError for one that is malformed.
void read_safetensors(WeightFile::Contents& contents, MappedFilePtr file);
void read_safetensors_index(
    WeightFile::Contents& contents,
    const MappedFile& index);
void read_gguf(WeightFile::Contents& contents, MappedFilePtr file);
void read_pt2(WeightFile::Contents& contents, MappedFilePtr file);

} // namespace detail
} // namespace dtensor
