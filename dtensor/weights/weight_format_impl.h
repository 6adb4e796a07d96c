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

/// Bits of an element of a format that safetensors has and we cannot read; 0
/// for a name that safetensors does not have.
int64_t unreadable_safetensors_bits(std::string_view name);

/// The format of a dtype by its number in exported programs; null if this
/// LibTorch has no such dtype.
const WeightFormat* exported_format(int64_t number);

/// A format of GGUF. Of one that cannot be read, the size of its blocks and
/// their bytes are right.
struct GgufFormat {
  WeightFormat format;
  bool can_be_read = true;
};
/// The format of that number in GGUF; null if GGUF has none.
const GgufFormat* gguf_format(uint32_t number);

} // namespace dtensor::detail
