// SPDX-License-Identifier: BSD-3-Clause
// Small tensors in collectives: they travel by value, with a signature that
// says all that ranks must agree on, so that nobody reads a peer's tensor and
// nobody waits for the others to have read its own.
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

/// The most that travels by value.
constexpr size_t kSmallBytes = 4096;

/// What a rank calls. Ranks whose signatures are equal and small call the same
/// collective, and no more need be compared.
struct Signature {
  /// 0: the collective goes the general way, and nothing else here is set.
  uint8_t small = 0;
  CollectiveKind kind = CollectiveKind::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  at::ScalarType dtype = at::kByte;
  uint8_t dims = 0;
  uint8_t dim = 0;
  /// In a shard_dim_alltoall the dimension that is cut.
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

/// Whether the tensor is plain memory with numbers in it, once autograd and
/// autocast are set aside.
bool is_plain(const at::Tensor& tensor);

/// The signature of a collective over `tensor`; not small if its bytes cannot
/// be taken as they are: long, strided, on a device, lazily conjugated.
Signature sign(CollectiveKind kind, const at::Tensor& tensor);

/// What one member publishes in one round. What most rounds need lies in one
/// cache line; two members' never share a pair of lines, which the hardware
/// fetches together.
struct alignas(128) Notice {
  /// The round that the rest belongs to; written last.
  std::atomic<int64_t> round{0};
  Signature signature;
  /// Aligned as vector instructions want it, without a gap before it.
  alignas(32) std::array<std::byte, kSmallBytes> data;
};
static_assert(sizeof(std::atomic<int64_t>) + sizeof(Signature) == 32);

/// The data that each member published, in rank order.
using Published = c10::ArrayRef<const void*>;

inline const void* advance(const void* data, int64_t bytes) {
  return static_cast<const std::byte*>(data) + bytes;
}

/// A tensor over published data, which is read only.
at::Tensor tensor_over(const void* data, const Signature& signature);

/// A tensor as rows along its signature's `dim`: `outer` times `size` strips of
/// `elements` of `item` bytes.
struct Strips {
  explicit Strips(const Signature& signature);
  int64_t outer;
  int64_t size;
  int64_t elements;
  int64_t item;
};

} // namespace dtensor::detail
