// SPDX-License-Identifier: BSD-3-Clause
// Contents of a weight file. The readers of formats fill them, and WeightFile
// uses them.
#pragma once

#include <c10/core/InferenceMode.h>
#include <dtensor/weights/json_document_impl.h>
#include <dtensor/weights/mapped_file_impl.h>
#include <dtensor/weights/weight_file.h>
#include <dtensor/weights/weight_format_impl.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dtensor {
namespace detail {

/// Maximum number of elements of a weight.
constexpr uint64_t kMostElements = uint64_t{1} << 48;
/// Maximum number of dimensions of a weight.
constexpr size_t kMostDims = 64;

/// Adds a dimension. Returns false if `sizes` already has kMostDims dimensions,
/// or if the number of elements or bytes might overflow. A size of 0 counts as
/// 1, so that the order of dimensions does not matter.
bool add_size(Sizes& sizes, uint64_t size);
/// Returns the reason why add_size() returned false for these sizes.
const char* why_not_added(const Sizes& sizes);

/// Returns the number of elements from the first to the last element of a
/// strided weight; nothing if there are more than kMostElements.
std::optional<uint64_t> reach_of(const Sizes& sizes, const Sizes& strides);

/// A contiguous box of a weight, stored in one file.
struct StoredPiece {
  Sizes offsets; // index of its first element in the weight
  Sizes sizes;
  const std::byte* data = nullptr;
  size_t bytes = 0;
  const MappedFile* file = nullptr;
  /// Checksum of each block of bytes. Empty if the file has none.
  std::vector<uint64_t> checksums = {};
  size_t block = 0;
  friend bool operator==(const StoredPiece&, const StoredPiece&) = default;
};

/// CRC-32 of `bytes` bytes from the start of a weight: the full record of an
/// exported program.
struct RecordChecksum {
  uint32_t crc32 = 0;
  size_t bytes = 0;
  friend bool operator==(const RecordChecksum&, const RecordChecksum&) =
      default;
};

/// Place and format of a weight's bytes.
struct StoredWeight {
  const std::byte* data = nullptr;
  const WeightFormat* format = nullptr; // null: unsupported
  size_t bytes = 0;
  Sizes strides = {}; // in elements; empty: contiguous
  std::optional<RecordChecksum> checksum = std::nullopt;
  /// Pieces of a safetensors weight. `data` is null if there are several
  /// pieces, or one that is not the full weight.
  std::vector<StoredPiece> pieces = {};
  bool in_pieces = false;
  friend bool operator==(const StoredWeight&, const StoredWeight&) = default;
};

/// Notes of a file about a tensor, apart from its place.
struct PieceNotes {
  /// Offsets of a piece in its weight. Nothing if the tensor is a full weight.
  std::optional<Sizes> offsets = std::nullopt;
  std::vector<uint64_t> checksums = {};
  size_t block = 0;
};

} // namespace detail

struct WeightFile::Contents {
  std::string path;
  std::vector<WeightInfo> weights;
  std::vector<detail::StoredWeight> stored; // by index in `weights`
  std::map<std::string, size_t, std::less<>> by_name;
  std::map<std::string, WeightMetadata> metadata;
  std::vector<detail::MappedFilePtr> files;

  /// Adds a weight. Throws ValueError for a duplicate name and for bytes
  /// outside `file`. The bytes begin at `offset`. Without a format, the weight
  /// can only be listed. `strides` has an element count per dimension; empty
  /// means contiguous.
  void add(
      WeightInfo info,
      const detail::WeightFormat* format,
      const detail::MappedFile& file,
      uint64_t offset,
      const Sizes& strides = {});
  /// Adds a safetensors weight, or a piece of a weight to which other files add
  /// further pieces.
  void add_piece(
      WeightInfo info,
      const detail::WeightFormat* format,
      const detail::MappedFile& file,
      uint64_t offset,
      detail::PieceNotes notes);
  /// Sets the sizes of weights in pieces. Throws ValueError for pieces that
  /// overlap or leave gaps.
  void join_pieces();
  /// Throws ValueError if `weight`, an element of `weights`, has an unsupported
  /// format.
  void check_can_be_read(const WeightInfo& weight, const char* where) const;
  /// Returns the place of `weight`, an element of `weights`.
  const detail::StoredWeight& stored_as(const WeightInfo& weight) const;
};

namespace detail {

/// Throws ValueError if the elements of the tensor `name` (for a DTensor, of
/// its local tensor) do not all have separate memory: sparse or expanded
/// tensors.
void check_can_be_filled(
    const std::string& name,
    const at::Tensor& target,
    const char* where);

/// Returns the intervals of this rank's local shard in each dimension.
std::vector<Intervals> parts_of(const at::Tensor& target);

/// Scope of writes to `target`. LibTorch allows writes to inference tensors
/// only in inference mode.
class WriteScope {
 public:
  explicit WriteScope(const at::Tensor& target);

 private:
  std::optional<c10::InferenceMode> mode_;
};

/// Returns the name of the tensor `name` in `file`: its own name, or the name
/// that the metadata gives for a shared tensor in the form of Python's
/// safetensors.torch.save_model. Returns `name` if the file has neither name.
std::string stored_name(const WeightFile& file, const std::string& name);

/// True if a complex weight would be read into a real tensor.
inline bool loses_imaginary_part(
    const WeightInfo& weight,
    const at::Tensor& target) {
  return c10::isComplexType(weight.dtype) && !target.is_complex();
}

/// Copies the elements at `parts`, at least one, of a contiguous weight of
/// `sizes` to `out`, which is contiguous. Allocates a few megabytes at most.
void read_elements(
    const StoredWeight& stored,
    SizesRef sizes,
    c10::ArrayRef<Intervals> parts,
    const at::Tensor& out);

/// Copies the elements at `parts` of a strided weight of `sizes` to any `out`.
void read_strided(
    const StoredWeight& stored,
    SizesRef sizes,
    c10::ArrayRef<Intervals> parts,
    const at::Tensor& out);

/// Copies the elements at `parts` from the pieces to `out`, in slices, so that
/// few pages are in memory.
void read_pieces(
    const StoredWeight& stored,
    c10::ArrayRef<Intervals> parts,
    const at::Tensor& out);

/// Opens the safetensors files with the given names in `folder`, and ignores
/// other files there.
WeightFilePtr open_weight_files(
    const std::string& folder,
    const std::vector<std::string>& names);

/// Returns the origin of a JSON text in a weight file, for error messages.
JsonOrigin weight_origin(const std::string& path, std::string part);

/// Adds the contents of the file, or of the files that the index names. Throws
/// ValueError for a malformed file.
void read_safetensors(WeightFile::Contents& contents, MappedFilePtr file);
void read_safetensors_index(
    WeightFile::Contents& contents,
    const MappedFile& index);
/// Adds all files of a folder that end in .safetensors. Each may hold pieces of
/// weights.
void read_safetensors_folder(
    WeightFile::Contents& contents,
    const std::string& folder);
void read_gguf(WeightFile::Contents& contents, MappedFilePtr file);
void read_pt2(WeightFile::Contents& contents, MappedFilePtr file);

} // namespace detail
} // namespace dtensor
