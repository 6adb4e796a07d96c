// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/debug/digest_impl.h>

#include <array>
#include <cstring>

namespace dtensor::detail {
namespace {

// Words that are mixed in parallel: enough independent multiplications to keep
// a core's multiplier busy.
constexpr size_t kLanes = 16;
constexpr size_t kBlock = kLanes * sizeof(uint64_t);
constexpr size_t kCacheLine = 64;
// Bytes between a block and the block to prefetch. A large tensor is not in the
// cache, and the processor does not prefetch early enough by itself.
constexpr size_t kAhead = 2048;

using Lanes = std::array<uint64_t, kLanes>;

void mix_block(Lanes& lanes, const unsigned char* block) {
  Lanes words;
  std::memcpy(words.data(), block, kBlock);
  for (size_t i = 0; i < kLanes; ++i) {
    lanes[i] = mix_digest(lanes[i], words[i]);
  }
}

} // namespace

uint64_t digest_bytes(const void* bytes, size_t count) {
  const auto* at = static_cast<const unsigned char*>(bytes);
  Lanes lanes{};
  for (size_t i = 0; i < kLanes; ++i) {
    lanes[i] = i + 1;
  }
  size_t left = count;
  for (; left >= kBlock; left -= kBlock, at += kBlock) {
    for (size_t line = 0; line < kBlock; line += kCacheLine) {
      __builtin_prefetch(at + kAhead + line);
    }
    mix_block(lanes, at);
  }
  if (left > 0) {
    std::array<unsigned char, kBlock> rest{};
    std::memcpy(rest.data(), at, left);
    mix_block(lanes, rest.data());
  }
  uint64_t digest = count;
  for (const auto lane : lanes) {
    digest = mix_digest(digest, lane);
  }
  return digest;
}

uint64_t digest_of(const at::Tensor& t) {
  if (!t.defined()) {
    return 0;
  }
  uint64_t digest = static_cast<uint64_t>(t.scalar_type()) + 1;
  for (const auto size : t.sizes()) {
    digest = mix_digest(digest, static_cast<uint64_t>(size));
  }
  if (t.is_meta()) {
    return digest;
  }
  const auto values =
      t.detach().resolve_conj().resolve_neg().cpu().contiguous();
  return mix_digest(
      digest, digest_bytes(values.const_data_ptr(), values.nbytes()));
}

uint64_t LastDigest::of(const at::Tensor& tensor) {
  const bool is_same = tensor.is_same(tensor_) && !tensor.is_inference() &&
      tensor._version() == version_;
  if (!is_same) {
    tensor_ = tensor;
    version_ = tensor.is_inference() ? 0 : tensor._version();
    digest_ = digest_of(tensor);
  }
  return digest_;
}

} // namespace dtensor::detail
