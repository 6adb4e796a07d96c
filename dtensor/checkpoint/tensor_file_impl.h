// SPDX-License-Identifier: BSD-3-Clause
// Safetensors files that are written in slices.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/shard_math.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace dtensor::detail {

/// A tensor, or a shard of a tensor, to be written to a file.
struct WrittenTensor {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  Sizes offsets; // of the shard in its tensor
  Sizes sizes;
  /// Function that returns `count` rows from `begin` on, contiguous and on the
  /// CPU; for a zero-dimensional tensor, the tensor itself.
  std::function<at::Tensor(int64_t begin, int64_t count)> rows;
};

/// Size of a file and checksum of its header.
struct FileNote {
  uint64_t bytes = 0;
  uint64_t header = 0;
  friend bool operator==(const FileNote&, const FileNote&) = default;
};
using FileNotes = std::map<std::string, FileNote>;

std::vector<std::string> names_of(const FileNotes& notes);

/// Returns the safetensors name of a dtype; null if there is no portable name.
const char* dtype_name(at::ScalarType dtype);

/// Writes the file, durable on disk upon return. With `in_pieces`, records the
/// offsets of each shard, as torch.distributed.checkpoint does. `texts` are
/// added to the metadata.
FileNote write_tensor_file(
    const std::string& path,
    std::vector<WrittenTensor> tensors,
    bool in_pieces,
    const std::map<std::string, std::string>& texts = {});

/// Returns a function that reads rows of a plain tensor on any device.
std::function<at::Tensor(int64_t, int64_t)> rows_of(const at::Tensor& value);

} // namespace dtensor::detail
