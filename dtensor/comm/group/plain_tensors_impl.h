// SPDX-License-Identifier: BSD-3-Clause
// PlainTensors: a guard under which collectives compute below autograd, for any
// grad mode of the caller.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>

namespace dtensor::detail {

struct PlainTensors {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  at::NoGradGuard no_grad;
};

} // namespace dtensor::detail
