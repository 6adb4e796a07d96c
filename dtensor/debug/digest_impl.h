// SPDX-License-Identifier: BSD-3-Clause
// digest_of: 64 bits that stand for the contents of a tensor, so that ranks can
// compare large tensors by small messages.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace dtensor::detail {

/// Mixes `word` into `state`; the order of the words counts.
inline uint64_t mix_digest(uint64_t state, uint64_t word) {
  state = (state ^ word) * 0x9E3779B97F4A7C15U;
  return state ^ (state >> 32);
}

uint64_t digest_bytes(const void* bytes, size_t count);
inline uint64_t digest_text(std::string_view text) {
  return digest_bytes(text.data(), text.size());
}

/// Depends on dtype, sizes and each bit of each element, not on strides. Of a
/// plain tensor; 0 of an undefined one. Reads the memory once; a tensor on
/// another device is copied to the CPU first.
uint64_t digest_of(const at::Tensor& t);

} // namespace dtensor::detail
