// SPDX-License-Identifier: BSD-3-Clause
// A file of safetensors that is written a slice at a time.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/shard_math.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace dtensor::detail {

/// A tensor, or a piece of one, on its way into a file.
struct WrittenTensor {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  Sizes offsets; // in the tensor of which it is a piece
  Sizes sizes;
  /// `count` of its rows from `begin` on, contiguous, on the CPU; all of a
  /// tensor without dimensions.
  std::function<at::Tensor(int64_t begin, int64_t count)> rows;
};

/// What is known of a file: its size, and the checksum of its header.
struct FileNote {
  uint64_t bytes = 0;
  uint64_t header = 0;
  friend bool operator==(const FileNote&, const FileNote&) = default;
};
using FileNotes = std::map<std::string, FileNote>;

/// What safetensors calls a dtype; null if it has none that other programs
/// know.
const char* dtype_name(at::ScalarType dtype);

/// Writes the file, on disk when it returns. With `in_pieces` it says where
/// each begins, as torch.distributed.checkpoint does. `texts` are added to the
/// metadata.
FileNote write_tensor_file(
    const std::string& path,
    std::vector<WrittenTensor> tensors,
    bool in_pieces,
    const std::map<std::string, std::string>& texts = {});

/// Rows of a plain tensor on any device.
std::function<at::Tensor(int64_t, int64_t)> rows_of(const at::Tensor& value);

} // namespace dtensor::detail
