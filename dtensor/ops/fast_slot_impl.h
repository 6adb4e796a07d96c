// SPDX-License-Identifier: BSD-3-Clause
// FastSlot: the data of an unboxed kernel (fast_kernel_impl.h), and the boxed
// kernels to which it forwards calls.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/boxing/impl/boxing.h>
#include <dtensor/ops/op_info_impl.h>
#include <dtensor/ops/recent_decisions_impl.h>

#include <memory>
#include <utility>

namespace dtensor::detail {

/// Data of the unboxed kernel of one operator. It is set at installation, while
/// the library loads, possibly before static objects of this file are
/// constructed. So it must be constant-initialized.
struct FastSlot {
  void set(std::shared_ptr<const OpInfo> op_info, bool above_autograd);
  bool boundaries_matter() const {
    return info->traits.boundary || info->traits.adds_bias;
  }

  std::shared_ptr<const OpInfo> info;
  std::unique_ptr<c10::KernelFunction> boxed;
};

/// Decides for these arguments, and caches whether and how a FastKernel may run
/// such calls.
void note_decision(
    const FastSlot& slot,
    const ShortKey& key,
    const torch::jit::Stack& args);

/// Forwards calls from a FastKernel to slower kernels. Operators of one
/// signature share these functions.
template <class Result, class... Args>
struct BoxedFallbacks {
  C10_NOINLINE static Result
  boxed(const FastSlot& slot, c10::DispatchKeySet keys, Args... args) {
    return slot.boxed->template call<Result, Args...>(
        slot.info->op, keys, std::forward<Args>(args)...);
  }

  C10_NOINLINE static Result
  stock(const FastSlot& slot, c10::DispatchKeySet keys, Args... args) {
    auto stack = c10::impl::boxArgs<Args...>(args...);
    slot.info->stock->callBoxed(slot.info->op, keys, &stack);
    return c10::impl::PopResult<Result>::call(stack);
  }

  C10_NOINLINE static void
  decide_for(const FastSlot& slot, const ShortKey& key, Args... args) {
    note_decision(slot, key, c10::impl::boxArgs<Args...>(args...));
  }
};

} // namespace dtensor::detail
