// SPDX-License-Identifier: BSD-3-Clause
// A predicate for distributed tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/torch_internals.h>

namespace dtensor {

/// True if `t` is a DTensor. False for an undefined tensor.
inline bool is_dtensor(const at::Tensor& t) {
  return t.defined() &&
      t.unsafeGetTensorImpl()->key_set().has_backend(detail::kDTensorBit);
}

} // namespace dtensor
