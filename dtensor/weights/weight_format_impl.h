// SPDX-License-Identifier: BSD-3-Clause
// Encodings of numbers in files: plain numbers, and blocks of quantized numbers
// with shared parameters.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace dtensor::detail {

struct WeightFormat {
  std::string_view name;
  at::ScalarType dtype = at::kFloat; // dtype that the elements are read as
  int64_t block = 1;                 // elements per block
  int64_t bytes = 0;                 // bytes per block
  /// Decodes `blocks` blocks to floats. Null: the elements are stored as
  /// `dtype`.
  void (*decode)(const std::byte* from, int64_t blocks, float* to) = nullptr;
  bool can_be_read = true;
};

/// Returns the format with that safetensors name, or null.
const WeightFormat* safetensors_format(std::string_view name);
/// Returns the safetensors format of a dtype, or null.
const WeightFormat* safetensors_format(at::ScalarType dtype);

/// Returns the bits per element of a safetensors format that is not supported
/// here, or 0 for an unknown name.
int64_t unreadable_safetensors_bits(std::string_view name);

/// Returns the format for the number of a dtype in exported programs, or null
/// if this LibTorch has no such dtype.
const WeightFormat* exported_format(int64_t number);

/// Returns the format with that number in GGUF, or null. Block size and bytes
/// are set also if the format cannot be read.
const WeightFormat* gguf_format(uint32_t number);

} // namespace dtensor::detail
