// SPDX-License-Identifier: BSD-3-Clause
// Dispatch, the path of every operator: decide, redistribute the inputs, call
// the local operator, wrap the results.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/stack.h>
#include <dtensor/ops/path/op_info_impl.h>
#include <dtensor/ops/strategy.h>

#include <memory>
#include <utility>

namespace dtensor::detail {

/// Runs the operator on the DTensors on the stack, below autograd.
void dispatch(const OpInfo& info, torch::jit::Stack* stack);

/// Copies the values of argument views again that are copies and out of date.
void bring_up_to_date(c10::ArrayRef<c10::IValue> args);

/// Runs the operator without applying the boundaries of its parameters.
void dispatch_in_boundary(const OpInfo& info, torch::jit::Stack* stack);

// Operators that run as a region: LibTorch's autograd records their local call
// (tensor/region_impl.h).

/// Returns true if a region with this decision runs LibTorch's own autograd
/// kernel on the DTensors, without the nodes that make its inputs local.
bool uses_native_autograd(
    const OpInfo& info,
    const Decision& decision,
    c10::ArrayRef<c10::IValue> args);

/// Runs the operator at the autograd key: redistributes the inputs and makes
/// them local, both recorded by autograd, runs the operator with its own
/// autograd, and turns the results into DTensors. `keys` is the key set of the
/// call.
void dispatch_region(
    const OpInfo& info,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack);

/// Boxed kernel registered for an operator, above autograd for a region.
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
