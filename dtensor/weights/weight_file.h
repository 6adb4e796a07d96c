// SPDX-License-Identifier: BSD-3-Clause
// Weight files: opens a file and reads single weights, or slices of them, from
// it. A rank reads only the bytes that it requests.
//
//   const auto file = open_weights("model.safetensors");
//   for (const auto& weight : file->weights()) {
//     std::cout << weight.name << " " << weight.format << "\n";
//   }
//   load_weights(*model, *file);  // weights/load_weights.h
//
// Supported formats: safetensors (one file, or several with an index), GGUF,
// and programs written by torch.export.save().
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/api.h>
#include <dtensor/layout/shard_math.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace dtensor {

/// Description of a tensor in a file.
struct WeightInfo {
  std::string name;
  Sizes sizes;
  /// Dtype that the weight is read as, before conversion; kFloat for quantized
  /// weights.
  at::ScalarType dtype = at::kFloat;
  /// Format name in the file: "F16", "BF16", "Q4_K".
  std::string format;
};

/// A metadata value of a file. Integers of any width are int64_t. Only in
/// arrays do one-byte integers keep their type, int8_t or uint8_t; an array of
/// bool is an array of uint8_t with 0 or 1.
using WeightMetadata = std::variant<
    bool,
    int64_t,
    double,
    std::string,
    std::vector<int64_t>,
    std::vector<double>,
    std::vector<std::string>,
    std::vector<int8_t>,
    std::vector<uint8_t>>;

/// An open, memory-mapped file of weights. Any number of ranks may read it at
/// the same time.
class DTENSOR_API WeightFile {
 public:
  struct Contents; // defined in weight_contents_impl.h

  explicit WeightFile(std::unique_ptr<Contents> contents);
  ~WeightFile();
  WeightFile(const WeightFile&) = delete;
  WeightFile& operator=(const WeightFile&) = delete;

  /// Returns the path given to open_weights().
  const std::string& path() const;
  /// Returns all weights in the order of the file, or file by file if there are
  /// several.
  const std::vector<WeightInfo>& weights() const;
  /// Returns the weight with that name, or null.
  const WeightInfo* find(std::string_view name) const;

  /// True if both names refer to the same elements of the file.
  bool is_same(std::string_view name, std::string_view other) const;

  /// Copies a selection of a weight's elements to `out`, which may have any
  /// dtype and device. `parts` selects a list of intervals along each
  /// dimension, for example those of local_intervals(). `out` must have the
  /// shape of the selection, and gets the elements in the order of the
  /// intervals.
  ///
  /// Throws ValueError for an unknown name, intervals outside the weight, a
  /// wrong shape of `out`, or an unsupported format. The supported formats of
  /// GGUF are F32, F16, BF16, F64, Q4_0, Q4_1, Q8_0, Q4_K, Q6_K and integers.
  /// Reading a full weight of an exported program also throws ValueError if its
  /// checksum is wrong.
  void read(
      std::string_view name,
      c10::ArrayRef<Intervals> parts,
      const at::Tensor& out) const;
  /// Returns the full weight in WeightInfo::dtype.
  at::Tensor read(std::string_view name) const;

  /// Returns the file's metadata by key: the header's __metadata__ of
  /// safetensors, all key-value pairs of GGUF.
  const std::map<std::string, WeightMetadata>& metadata() const;

  /// Returns the internal contents (weight_contents_impl.h). For the library
  /// only.
  const Contents& contents() const;

 private:
  std::unique_ptr<Contents> contents_;
};

/// Shared pointer to an open file. All readers share its memory mapping.
using WeightFilePtr = std::shared_ptr<const WeightFile>;

/// Opens a file of weights. The path selects the format:
/// - a file that begins with "GGUF": GGUF
/// - a zip archive: an exported program (.pt2), including its constants
/// - a name that ends in ".json": an index of safetensors files beside it
/// - a folder: its model.safetensors or model.safetensors.index.json, or else
///   all of its safetensors files
/// - any other file: safetensors
///
/// Sharded tensors written by torch.distributed.checkpoint's
/// HuggingFaceStorageWriter or by save_checkpoint are read as full tensors.
///
/// Throws ValueError if a file is missing, not a regular file, or malformed. A
/// file is malformed if offsets are outside the file, misaligned (GGUF),
/// overlapping or with gaps, if names or keys repeat, if a type is unknown, or
/// if pieces are missing. The message names the file and the position in the
/// file. Also throws ValueError for a GGUF model that is split into several
/// files, and for an index that names a file outside its folder.
DTENSOR_API WeightFilePtr open_weights(const std::string& path);

} // namespace dtensor
