// SPDX-License-Identifier: BSD-3-Clause
// What the readers of formats fill, and WeightFile reads from.
#pragma once

#include <dtensor/weights/json_document_impl.h>
#include <dtensor/weights/mapped_file_impl.h>
#include <dtensor/weights/weight_file.h>
#include <dtensor/weights/weight_format_impl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace dtensor {
namespace detail {

/// The most elements that a weight may have.
constexpr uint64_t kMostElements = uint64_t{1} << 48;

/// Adds a dimension; false if the tensor has so many elements then that their
/// number, or that of their bytes, might not fit (a size of 0 counted as 1, so
/// that the order does not matter).
inline bool add_size(Sizes& sizes, uint64_t size) {
  uint64_t room = kMostElements;
  for (const auto before : sizes) {
    room /= static_cast<uint64_t>(std::max<int64_t>(before, 1));
  }
  if (size > room) {
    return false;
  }
  sizes.push_back(static_cast<int64_t>(size));
  return true;
}

/// Counts the elements that a weight reaches over, from its first. Nothing if
/// they are more than kMostElements.
std::optional<uint64_t> reach_of(const Sizes& sizes, const Sizes& strides);

/// A box of a weight that lies in one file, contiguous.
struct StoredPiece {
  Sizes offsets; // of its first element, in the weight
  Sizes sizes;
  const std::byte* data = nullptr;
  size_t bytes = 0;
  const MappedFile* file = nullptr;
  /// Of each block of its bytes; none: the file has none of it.
  std::vector<uint64_t> checksums = {};
  size_t block = 0;
  friend bool operator==(const StoredPiece&, const StoredPiece&) = default;
};

/// CRC-32 of so many bytes from the first of a weight: all of a record of an
/// exported program.
struct RecordChecksum {
  uint32_t crc32 = 0;
  size_t bytes = 0;
  friend bool operator==(const RecordChecksum&, const RecordChecksum&) =
      default;
};

/// Where the bytes of a weight are, and what they mean.
struct StoredWeight {
  const std::byte* data = nullptr;
  const WeightFormat* format = nullptr; // null: it cannot be read
  size_t bytes = 0;
  Sizes strides = {}; // in elements; none: one element after the other
  std::optional<RecordChecksum> checksum = std::nullopt;
  /// Of safetensors. Where there are several, or one that is a part, there is
  /// no `data`.
  std::vector<StoredPiece> pieces = {};
  bool in_pieces = false;
  friend bool operator==(const StoredWeight&, const StoredWeight&) = default;
};

/// What a file says of a tensor beside its place.
struct PieceNotes {
  /// Where it begins in the weight of which it is a piece; none: it is the
  /// whole.
  std::optional<Sizes> offsets = std::nullopt;
  std::vector<uint64_t> checksums = {};
  size_t block = 0;
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
  /// The same of what safetensors has: a weight, or a piece of one, to which
  /// other files add theirs.
  void add_piece(
      WeightInfo info,
      const detail::WeightFormat* format,
      const detail::MappedFile& file,
      uint64_t offset,
      detail::PieceNotes notes);
  /// Gives weights in pieces their sizes. Throws ValueError for pieces that
  /// overlap, or leave something out.
  void join_pieces();
  /// Throws ValueError for one of `weights` whose format we do not know.
  void check_can_be_read(const WeightInfo& weight, const char* where) const;
  /// One of `weights`.
  const detail::StoredWeight& stored_as(const WeightInfo& weight) const;
};

namespace detail {

/// Throws ValueError for a tensor `name` whose elements (of a DTensor, of this
/// rank's part) do not each have memory of their own: sparse, or expanded.
void check_can_be_filled(
    const std::string& name,
    const at::Tensor& target,
    const char* where);

/// Returns the name under which `file` has the tensor `name`: its own, or the
/// one that the metadata give for a shared tensor, as Python's
/// safetensors.torch.save_model writes it. `name` if there is neither.
std::string stored_name(const WeightFile& file, const std::string& name);

/// Whether a complex weight would be read into a real tensor.
inline bool loses_imaginary_part(
    const WeightInfo& weight,
    const at::Tensor& target) {
  return c10::isComplexType(weight.dtype) && !target.is_complex();
}

/// Copies the elements at `parts` of a contiguous weight of `sizes` to `out`,
/// which is contiguous. Takes memory for some megabytes at most.
void read_elements(
    const StoredWeight& stored,
    SizesRef sizes,
    c10::ArrayRef<Intervals> parts,
    const at::Tensor& out);

/// The same of a weight with strides, to any `out`.
void read_strided(
    const StoredWeight& stored,
    SizesRef sizes,
    c10::ArrayRef<Intervals> parts,
    const at::Tensor& out);

/// Copies the elements at `parts` from the pieces to `out`, a slice at a time,
/// so that few pages are held.
void read_pieces(
    const StoredWeight& stored,
    c10::ArrayRef<Intervals> parts,
    const at::Tensor& out);

/// open_weights() of the files of those names in `folder`, all of safetensors,
/// whatever else is there.
WeightFilePtr open_weight_files(
    const std::string& folder,
    const std::vector<std::string>& names);

/// Names a JSON text of a file of weights in error messages.
JsonOrigin weight_origin(const std::string& path, std::string part);

/// Adds what the file holds, or the files that the index names. They throw
/// ValueError for one that is malformed.
void read_safetensors(WeightFile::Contents& contents, MappedFilePtr file);
void read_safetensors_index(
    WeightFile::Contents& contents,
    const MappedFile& index);
/// All files of a folder that end in .safetensors, of which each may hold
/// pieces.
void read_safetensors_folder(
    WeightFile::Contents& contents,
    const std::string& folder);
void read_gguf(WeightFile::Contents& contents, MappedFilePtr file);
void read_pt2(WeightFile::Contents& contents, MappedFilePtr file);

} // namespace detail
} // namespace dtensor
