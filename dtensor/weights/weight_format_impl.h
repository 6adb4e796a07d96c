// SPDX-License-Identifier: BSD-3-Clause
// How numbers lie in a file: plain ones, and blocks of quantised ones with what
// they have in common.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace dtensor::detail {

struct WeightFormat {
  std::string_view name;
  at::ScalarType dtype = at::kFloat; // what it is read as
  int64_t block = 1;                 // elements that stand together
  int64_t bytes = 0;                 // of a block
  /// Writes the `blocks` * block numbers; null: they are there as they are.
  void (*decode)(const std::byte* from, int64_t blocks, float* to) = nullptr;
};

/// The format that safetensors calls so; null if it is unknown.
const WeightFormat* safetensors_format(std::string_view name);
/// That of a dtype; null if safetensors has none.
const WeightFormat* safetensors_format(at::ScalarType dtype);

/// The format of a dtype by its number in exported programs; null if this
/// LibTorch has no such dtype.
const WeightFormat* exported_format(int64_t number);

/// The format of that number in GGUF; null if it cannot be read.
const WeightFormat* gguf_format(uint32_t number);
/// "Q5_1"; also of one that cannot be read.
std::string_view gguf_format_name(uint32_t number);

} // namespace dtensor::detail
