// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/threads/small_impl.h>

#include <ATen/ops/from_blob.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <limits>

namespace dtensor::detail {
namespace {

bool fits(at::IntArrayRef sizes) {
  return sizes.size() <= Signature().sizes.size() &&
      std::ranges::all_of(sizes, [](int64_t size) {
           return size <= std::numeric_limits<uint16_t>::max();
         });
}

} // namespace

at::Tensor tensor_over(const void* data, const Signature& signature) {
  return at::from_blob(
      const_cast<void*>(data), signature.shape(), signature.dtype);
}

Strips::Strips(const Signature& signature) {
  const at::DimVector shape = signature.shape();
  const at::IntArrayRef sizes = shape;
  outer = c10::multiply_integers(sizes.slice(0, signature.dim));
  size = sizes[signature.dim];
  elements = c10::multiply_integers(sizes.slice(signature.dim + 1));
  item = static_cast<int64_t>(c10::elementSize(signature.dtype));
}

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

} // namespace dtensor::detail
