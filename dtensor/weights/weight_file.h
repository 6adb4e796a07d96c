// SPDX-License-Identifier: BSD-3-Clause
// Files of weights, of which a rank reads the bytes alone that it asks for.
//
//   const auto file = open_weights("model.safetensors");
//   for (const auto& weight : file->weights()) {
//     std::cout << weight.name << " " << weight.format << "\n";
//   }
//   load_weights(*model, *file);  // weights/load_weights.h
//
// safetensors, one file or several behind an index, GGUF, and programs that
// torch.export.save() wrote.
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

/// A tensor in a file.
struct WeightInfo {
  std::string name;
  Sizes sizes;
  /// What it is read as, before it is converted; kFloat of a quantised one.
  at::ScalarType dtype = at::kFloat;
  /// What the file calls it: "F16", "BF16", "Q4_K".
  std::string format;
};

/// What a file says of itself. Whole numbers of any width are int64_t, but for
/// those of an array of one byte each: int8_t, or uint8_t (unsigned numbers,
/// and 0 or 1 for bool).
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

/// A file that is open: it is mapped, and read where it is asked for. Any
/// number of ranks may read one at the same time.
class DTENSOR_API WeightFile {
 public:
  struct Contents; // weight_file.cpp

  explicit WeightFile(std::unique_ptr<Contents> contents);
  ~WeightFile();
  WeightFile(const WeightFile&) = delete;
  WeightFile& operator=(const WeightFile&) = delete;

  /// What open_weights() was given.
  const std::string& path() const;
  /// All weights, in the order of the file; of several files one after the
  /// other.
  const std::vector<WeightInfo>& weights() const;
  /// The weight of that name; null if there is none.
  const WeightInfo* find(std::string_view name) const;

  /// Whether both names are of one weight: the same elements of the file.
  bool is_same(std::string_view name, std::string_view other) const;

  /// Copies elements of a weight to `out`, of any dtype, on any device: those
  /// at `parts`, one list of intervals for each dimension (local_intervals of
  /// a layout), in their order. `out` has as many elements in each dimension.
  /// Throws ValueError for a name that the file does not have, for intervals
  /// outside of the weight, for another shape of `out`, for a format that
  /// cannot be read (of GGUF, F32, F16, BF16, F64, Q4_0, Q4_1, Q8_0, Q4_K, Q6_K
  /// and whole numbers can), and, where all of a weight of an exported program
  /// is read, for bytes with another checksum than the file says.
  void read(
      std::string_view name,
      c10::ArrayRef<Intervals> parts,
      const at::Tensor& out) const;
  /// All of it, as it is stored; a quantised weight as float32.
  at::Tensor read(std::string_view name) const;

  /// What the file says of itself, by key: the header's __metadata__ of
  /// safetensors, all key-value pairs of GGUF.
  const std::map<std::string, WeightMetadata>& metadata() const;

  /// For layers above (weight_contents_impl.h).
  const Contents& contents() const;

 private:
  std::unique_ptr<Contents> contents_;
};

/// How a file is shared between those who read it.
using WeightFilePtr = std::shared_ptr<const WeightFile>;

/// Opens a file of weights: what begins with "GGUF" is that, a zip an exported
/// program (.pt2, its constants included), what ends in ".json" an index of
/// safetensors files beside it, a folder one that holds model.safetensors or
/// its index, or else all of its safetensors files, and anything else
/// safetensors. What torch.distributed.checkpoint's HuggingFaceStorageWriter,
/// or save_checkpoint, has cut into pieces is read as if it were whole. Throws
/// ValueError, with the file and the place in it, for a file that is not there,
/// is no regular file, or is not what it says: offsets outside of the file,
/// misaligned (GGUF), overlapping or leaving bytes out, a name or a key that
/// stands twice, unknown types, or pieces that leave something out. So is one
/// GGUF file of several that are one model, and an index that names a file
/// outside of its folder.
DTENSOR_API WeightFilePtr open_weights(const std::string& path);

} // namespace dtensor
