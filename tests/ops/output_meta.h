// SPDX-License-Identifier: BSD-3-Clause
// The metadata of a plain result, in the form that rules receive.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/ops/op_call.h>

namespace dtensor::testing {

inline OutputMeta meta_of_result(const at::Tensor& t) {
  OutputMeta meta;
  meta.defined = t.defined();
  if (t.defined()) {
    meta.sizes.assign(t.sizes().begin(), t.sizes().end());
    meta.strides.assign(t.strides().begin(), t.strides().end());
    meta.dtype = t.scalar_type();
  }
  return meta;
}

} // namespace dtensor::testing
