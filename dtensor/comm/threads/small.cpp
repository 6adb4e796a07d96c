// SPDX-License-Identifier: BSD-3-Clause
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DispatchKeySet.h>
#include <dtensor/comm/plain_tensors_impl.h>
#include <dtensor/comm/threads/reduce_impl.h>
#include <dtensor/comm/threads/reduce_loops_impl.h>
#include <dtensor/comm/threads/small_impl.h>
#include <dtensor/layout/shard_math.h>

#include <limits>

namespace dtensor::detail {
namespace {

bool fits(at::IntArrayRef sizes) {
  if (sizes.size() > Signature().sizes.size()) {
    return false;
  }
  for (const int64_t size : sizes) {
    if (size > std::numeric_limits<uint16_t>::max()) {
      return false;
    }
  }
  return true;
}

int64_t product(at::IntArrayRef sizes) {
  int64_t result = 1;
  for (const int64_t size : sizes) {
    result *= size;
  }
  return result;
}

const void* advance(const void* data, int64_t bytes) {
  return static_cast<const std::byte*>(data) + bytes;
}

// A tensor over published data, which is read only.
at::Tensor tensor_over(const void* data, const Signature& signature) {
  return at::from_blob(
      const_cast<void*>(data), signature.shape(), signature.dtype);
}

/// The tensor as rows along `dim`: `outer` times `size` strips of
/// `strip_bytes`.
struct Strips {
  explicit Strips(const Signature& signature) {
    const at::DimVector shape = signature.shape();
    const at::IntArrayRef sizes = shape;
    outer = product(sizes.slice(0, signature.dim));
    size = sizes[signature.dim];
    elements = product(sizes.slice(signature.dim + 1));
    item = static_cast<int64_t>(c10::elementSize(signature.dtype));
  }
  int64_t outer;
  int64_t size;
  int64_t elements;
  int64_t item;
};

} // namespace

bool is_plain(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet aside =
      c10::autograd_dispatch_keyset_with_ADInplaceOrView |
      c10::autocast_dispatch_keyset;
  return (tensor.key_set() - aside) ==
      c10::DispatchKeySet(c10::DispatchKey::CPU);
}

Signature sign(CollectiveKind kind, const at::Tensor& tensor) {
  Signature result;
  if (!is_plain(tensor) || tensor.nbytes() > kSmallBytes ||
      !fits(tensor.sizes()) || !tensor.is_contiguous()) {
    return result;
  }
  result.small = 1;
  result.kind = kind;
  result.dtype = tensor.scalar_type();
  result.dims = static_cast<uint8_t>(tensor.dim());
  for (size_t dim = 0; dim < tensor.sizes().size(); ++dim) {
    result.sizes[dim] = static_cast<uint16_t>(tensor.sizes()[dim]);
  }
  return result;
}

void reduce_small(
    const Signature& signature,
    Published members,
    const at::Tensor& out) {
  if (has_loop(signature.dtype, signature.op)) {
    void* const to = out.data_ptr();
    reduce_loop(signature.dtype, signature.op, members, to, out.numel());
    return;
  }
  const PlainTensors guard;
  c10::SmallVector<at::Tensor, 8> inputs;
  for (const void* data : members) {
    inputs.push_back(tensor_over(data, signature));
  }
  reduce_into(out, inputs, signature.op);
}

void reduce_scatter_small(
    const Signature& signature,
    Published members,
    int64_t rank,
    const at::Tensor& out) {
  const Strips strips(signature);
  const auto ranks = static_cast<int64_t>(members.size());
  const Interval mine = chunk(strips.size, ranks, rank);
  if (!has_loop(signature.dtype, signature.op)) {
    const PlainTensors guard;
    c10::SmallVector<at::Tensor, 8> inputs;
    for (const void* data : members) {
      inputs.push_back(tensor_over(data, signature)
                           .narrow(signature.dim, mine.begin, mine.size()));
    }
    reduce_into(out, inputs, signature.op);
    return;
  }
  const int64_t length = mine.size() * strips.elements;
  c10::SmallVector<const void*, 8> from(members.begin(), members.end());
  for (int64_t row = 0; row < strips.outer; ++row) {
    const int64_t first = (row * strips.size + mine.begin) * strips.elements;
    for (size_t member = 0; member < from.size(); ++member) {
      from[member] = advance(members[member], first * strips.item);
    }
    std::byte* to =
        static_cast<std::byte*>(out.data_ptr()) + row * length * strips.item;
    reduce_loop(signature.dtype, signature.op, from, to, length);
  }
}

void gather_small(
    const Signature& signature,
    Published members,
    const at::Tensor& out) {
  const Strips strips(signature);
  const int64_t bytes = strips.size * strips.elements * strips.item;
  auto* to = static_cast<std::byte*>(out.data_ptr());
  if (bytes == 0) {
    return;
  }
  for (int64_t row = 0; row < strips.outer; ++row) {
    for (const void* data : members) {
      std::memcpy(to, advance(data, row * bytes), static_cast<size_t>(bytes));
      to += bytes;
    }
  }
}

void exchange_small(
    const Signature& signature,
    Published members,
    int64_t rank,
    const at::Tensor& out) {
  const PlainTensors guard;
  const int64_t shard_dim = signature.root;
  const int64_t size = signature.sizes[signature.root];
  const auto ranks = static_cast<int64_t>(members.size());
  const Interval kept = chunk(size, ranks, rank);
  std::vector<at::Tensor> parts;
  for (const void* data : members) {
    parts.push_back(tensor_over(data, signature)
                        .narrow(shard_dim, kept.begin, kept.size()));
  }
  at::Tensor to = out;
  at::cat_out(to, parts, signature.dim);
}

} // namespace dtensor::detail
