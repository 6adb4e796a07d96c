// SPDX-License-Identifier: BSD-3-Clause
// digest_of: a 64-bit hash of a tensor's contents, so that ranks can compare
// large tensors with small messages.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace dtensor::detail {

/// Mixes `word` into `state`. The order of words matters.
inline uint64_t mix_digest(uint64_t state, uint64_t word) {
  state = (state ^ word) * 0x9E3779B97F4A7C15U;
  return state ^ (state >> 32);
}

uint64_t digest_bytes(const void* bytes, size_t count);
inline uint64_t digest_text(std::string_view text) {
  return digest_bytes(text.data(), text.size());
}

/// Hashes dtype, sizes and every bit of every element of a plain tensor, but
/// not strides. Returns 0 for an undefined tensor. Reads the memory once; a
/// tensor on another device is copied to the CPU first.
uint64_t digest_of(const at::Tensor& t);

/// Digest of the last tensor, which the projections of an attention have as
/// their common input. Keeps that tensor alive, so that no other one takes its
/// place in memory.
class LastDigest {
 public:
  /// Returns digest_of(tensor). Reads no memory if `tensor` is the last tensor
  /// and was not written since.
  uint64_t of(const at::Tensor& tensor);
  void forget() {
    tensor_.reset();
  }

 private:
  at::Tensor tensor_;
  int64_t version_ = 0;
  uint64_t digest_ = 0;
};

} // namespace dtensor::detail
