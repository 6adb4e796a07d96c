// SPDX-License-Identifier: BSD-3-Clause
// Who has kAskedFirstKey, the dispatch key of what wants to see an operator
// before anything else does: DTensors on the meta device, and parameters of
// which operators are to get the whole (ops/whole_source_impl.h); a
// DeferredInit scope includes it. Its fallback stands in ops/asked_first.cpp.
//
// A DTensor on the meta device needs it because the bit of that device outranks
// every other: beside a plain meta tensor, LibTorch would not ask the DTensor's
// kernels.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/torch_internals.h>

namespace dtensor::detail {

/// Gives `t` the key.
void make_asked_first(const at::Tensor& t);
/// Takes the key away.
void make_not_asked_first(const at::Tensor& t);

} // namespace dtensor::detail
