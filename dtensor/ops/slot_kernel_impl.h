// SPDX-License-Identifier: BSD-3-Clause
// SlotKernel: the boxed kernel of an operator.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <dtensor/ops/dispatch_impl.h>
#include <dtensor/ops/op_info_impl.h>
#include <dtensor/ops/region_impl.h>

#include <memory>
#include <utility>

namespace dtensor::detail {

/// Kernel registered for an operator, above autograd for a region.
class SlotKernel final : public c10::OperatorKernel {
 public:
  SlotKernel(std::shared_ptr<const OpInfo> info, bool above_autograd)
      : info_(std::move(info)),
        above_autograd_(above_autograd) {}

  void operator()(
      const c10::OperatorHandle&,
      c10::DispatchKeySet keys,
      torch::jit::Stack* stack) {
    if (above_autograd_) {
      dispatch_region(*info_, keys, stack);
    } else {
      dispatch(*info_, stack);
    }
  }

 private:
  std::shared_ptr<const OpInfo> info_;
  bool above_autograd_;
};

} // namespace dtensor::detail
