// SPDX-License-Identifier: BSD-3-Clause
// FastSlot: the data of an unboxed kernel (fast_kernel_impl.h), the boxed
// kernels to which it forwards calls, and operations on arguments and results.
#pragma once

#include <ATen/core/IListRef.h>
#include <ATen/core/IListRef_inl.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/boxing/impl/boxing.h>
#include <dtensor/comm/group/operator_errors_impl.h>
#include <dtensor/ops/path/decide_impl.h>
#include <dtensor/ops/path/op_info_impl.h>
#include <dtensor/ops/strategy.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

namespace dtensor::detail {

/// Data of the unboxed kernel of one operator. The data are set at
/// installation, while the library loads, possibly before static objects of
/// this file are constructed. A slot must therefore be constant-initialized.
struct FastSlot {
  void set(std::shared_ptr<const OpInfo> op_info, bool above_autograd);
  bool boundaries_matter() const {
    return info->traits.boundary || info->traits.adds_bias;
  }

  std::shared_ptr<const OpInfo> info;
  std::unique_ptr<c10::KernelFunction> boxed;
};

/// Decides a call with these arguments. Caches whether a FastKernel may run
/// such calls, with the decision.
void note_decision(
    const FastSlot& slot,
    const ShortKey& key,
    const torch::jit::Stack& args);

/// Notes that a local operator with this decision has thrown the current
/// exception (note_current_error()).
void note_failure(const Decision& decision, ErrorCounts before);

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

// Operations of an unboxed kernel on its arguments and results.

inline const at::Tensor& local_arg(const at::Tensor& t) {
  return is_dtensor(t) ? meta_of(t).local() : t;
}
inline at::Tensor& local_arg(at::Tensor& t) {
  return is_dtensor(t) ? meta_of(t).local() : t;
}
inline std::optional<at::Tensor> local_arg(const std::optional<at::Tensor>& t) {
  return t ? std::optional(local_arg(*t)) : std::nullopt;
}
inline std::vector<at::Tensor> local_arg(const at::ITensorListRef& list) {
  std::vector<at::Tensor> locals;
  locals.reserve(list.size());
  for (const at::Tensor& t : list) {
    locals.push_back(local_arg(t));
  }
  return locals;
}
template <class T>
const T& local_arg(const T& value) {
  return value;
}

inline at::Tensor wrap_fast(at::Tensor local, const SpecPtr& spec) {
  return local.defined() ? wrap(std::move(local), spec) : local;
}

template <class... Results, size_t... i>
std::tuple<Results...> wrap_fast(
    std::tuple<Results...> locals,
    const Decision& decision,
    std::index_sequence<i...>) {
  return {wrap_fast(std::move(std::get<i>(locals)), decision.outputs[i])...};
}

inline bool requires_grad(const at::Tensor& t) {
  return t.requires_grad();
}
inline bool requires_grad(const std::optional<at::Tensor>& t) {
  return t && t->requires_grad();
}
inline bool requires_grad(const at::ITensorListRef& list) {
  return std::any_of(list.begin(), list.end(), [](const at::Tensor& t) {
    return t.requires_grad();
  });
}
template <class T>
bool requires_grad(const T&) {
  return false;
}

} // namespace dtensor::detail
