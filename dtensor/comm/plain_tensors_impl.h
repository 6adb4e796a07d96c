// SPDX-License-Identifier: BSD-3-Clause
// PlainTensors: collectives compute below autograd, whatever the caller's grad
// mode is.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

namespace dtensor::detail {

struct PlainTensors {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::NoGradGuard no_grad;
};

} // namespace dtensor::detail
