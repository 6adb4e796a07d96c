// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/debug/digest_impl.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace dtensor::detail {

uint64_t digest_bytes(const void* bytes, size_t count) {
  return XXH3_64bits(bytes, count);
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
