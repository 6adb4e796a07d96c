// SPDX-License-Identifier: BSD-3-Clause
// Small tensors in collectives. Small tensors travel by value, with a signature
// of all properties that ranks must agree on. No rank reads a peer's tensor,
// and no rank waits until peers have read its own.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/comm/observer.h>
#include <dtensor/layout/placement.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <type_traits>

namespace dtensor::detail {

/// Maximum number of bytes that travel by value.
constexpr size_t kSmallBytes = 4096;

/// Description of a rank's collective call. If the signatures of all ranks are
/// small and equal, the ranks call the same collective, and no further check is
/// needed.
struct Signature {
  /// 0: the collective takes the general path, and no other field is set.
  uint8_t small = 0;
  CollectiveKind kind = CollectiveKind::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  at::ScalarType dtype = at::kByte;
  uint8_t dims = 0;
  uint8_t dim = 0;
  /// Root rank; in a shard_dim_alltoall the dimension to shard.
  uint16_t root = 0;
  std::array<uint16_t, 8> sizes{};

  at::DimVector shape() const {
    return at::DimVector(sizes.begin(), sizes.begin() + dims);
  }
  friend bool operator==(const Signature& a, const Signature& b) {
    return std::memcmp(&a, &b, sizeof(Signature)) == 0;
  }
};
static_assert(std::has_unique_object_representations_v<Signature>);

/// Returns true for a dense CPU tensor without any other dispatch key, not
/// counting those of autograd and autocast.
bool is_plain(const at::Tensor& tensor);

/// Returns the signature of a collective over `tensor`. The signature is not
/// small if the tensor is large, strided, on a device, or lazily conjugated,
/// because the tensor's bytes then cannot be copied as they are.
Signature sign(CollectiveKind kind, const at::Tensor& tensor);

/// Data that one member publishes in one round. The fields that most rounds
/// need fit into one cache line. Notices of two members never share a pair of
/// adjacent lines, as the hardware prefetches lines in pairs.
struct alignas(128) Notice {
  /// Round of the other fields; written last.
  std::atomic<int64_t> round{0};
  Signature signature;
  /// Aligned for vector instructions, without a gap before it.
  alignas(32) std::array<std::byte, kSmallBytes> data;
};
static_assert(sizeof(std::atomic<int64_t>) + sizeof(Signature) == 32);

/// Data published by each member, in rank order.
using Published = c10::ArrayRef<const void*>;

inline const void* advance(const void* data, int64_t bytes) {
  return static_cast<const std::byte*>(data) + bytes;
}

/// Returns a read-only tensor over published data.
at::Tensor tensor_over(const void* data, const Signature& signature);

/// Memory layout of a tensor along its signature's `dim`: `outer` times `size`
/// strips of `elements` elements of `item` bytes.
struct Strips {
  explicit Strips(const Signature& signature);
  int64_t outer;
  int64_t size;
  int64_t elements;
  int64_t item;
};

} // namespace dtensor::detail
