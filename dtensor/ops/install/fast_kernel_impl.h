// SPDX-License-Identifier: BSD-3-Clause
// FastKernel: the unboxed kernel of a frequently called operator.
//
// If a decision requires only the local operator, a FastKernel does the work of
// dispatch(): it looks up the decision, calls the operator on the local
// tensors, and wraps the results. Any other call (with a redistribution,
// changed arguments, a style's boundary, or the gradient of a region) goes to
// the boxed SlotKernel, which handles every case.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <dtensor/ops/boundary/boundaries_impl.h>
#include <dtensor/ops/install/fast_slot_impl.h>
#include <dtensor/ops/install/kernels_impl.h>
#include <dtensor/ops/path/decide_impl.h>
#include <dtensor/ops/path/op_info_impl.h>
#include <dtensor/ops/variants/view_result_impl.h>
#include <dtensor/tensor/memory_order_impl.h>

#include <torch/library.h>

#include <memory>
#include <string_view>
#include <tuple>
#include <utility>

namespace dtensor::detail {

struct NoGuard {};

// True if the boundaries of the first argument may be attached to the result.
template <class Result, class First, class...>
constexpr bool may_carry() {
  return std::is_same_v<Result, at::Tensor> &&
      std::is_same_v<std::decay_t<First>, at::Tensor>;
}

// True if results share memory with the first argument.
template <class Op>
constexpr bool is_view() {
  return std::string_view(Op::schema_str).find("(Tensor(a) ") !=
      std::string_view::npos;
}

template <class Op, bool kAboveAutograd, class Schema = typename Op::schema>
struct FastKernel;

template <class Op, bool kAboveAutograd, class Result, class... Args>
struct FastKernel<Op, kAboveAutograd, Result(Args...)> {
  static Result call(c10::DispatchKeySet keys, Args... args) {
    const OpInfo& info = *slot.info;
    const bool records = kAboveAutograd && c10::GradMode::is_enabled() &&
        (requires_grad(args) || ...);
    if (records && !info.stock) {
      return Slow::boxed(slot, keys, args...);
    }
    ShortKey key;
    add_all(key, info, std::index_sequence_for<Args...>(), args...);
    if (C10_UNLIKELY(
            (key.special() && !may_take(key)) ||
            (kIsView && c10::InferenceMode::is_enabled()))) {
      return Slow::boxed(slot, keys, args...);
    }
    const auto* entry = recent_decisions(info.slot).find(key);
    if (C10_UNLIKELY(entry == nullptr)) {
      Slow::decide_for(slot, key, args...);
      return Slow::boxed(slot, keys, args...);
    }
    if (entry->decision == nullptr || (records && !entry->stock)) {
      return Slow::boxed(slot, keys, args...);
    }
    if constexpr (kAboveAutograd && !std::is_reference_v<Result>) {
      if (records) {
        return Slow::stock(slot, keys, args...);
      }
    }
    const ErrorCounts errors = error_counts;
    try {
      if constexpr (may_carry<Result, Args...>()) {
        if (C10_UNLIKELY(key.has_boundaries())) {
          Result result = call_local(*entry->decision, args...);
          if (auto carried = carried_boundaries(
                  info.traits, std::get<0>(std::tie(args...)))) {
            meta_of(result).boundaries = std::move(carried);
          }
          return result;
        }
      }
      return call_local(*entry->decision, args...);
    } catch (const c10::NotImplementedError&) {
      // A missing kernel for meta tensors, or an error again.
      return Slow::boxed(slot, keys, args...);
    } catch (...) {
      note_failure(*entry->decision, errors);
      throw;
    }
  }

  static inline constinit FastSlot slot{};

 private:
  using Slow = BoxedFallbacks<Result, Args...>;
  static constexpr bool kIsView = is_view<Op>();

  static bool may_take(const ShortKey& key) {
    return key.usable() && !slot.boundaries_matter();
  }

  template <size_t... i>
  static void add_all(
      ShortKey& key,
      const OpInfo& info,
      std::index_sequence<i...>,
      const Args&... args) {
    (add_to_key(key, args, info.value_matters[i]), ...);
    add_caller_to_key(key, info);
  }

  static Result call_local(const Decision& decision, Args... args) {
    [[maybe_unused]] std::conditional_t<
        kAboveAutograd,
        at::AutoDispatchBelowADInplaceOrView,
        NoGuard>
        below;
    if constexpr (std::is_same_v<Result, at::Tensor&>) {
      Op::call(local_arg(args)...);
      auto& self = std::get<0>(std::tie(args...));
      if (C10_LIKELY(is_dtensor(self))) {
        count_write(self);
      }
      return self;
    } else if constexpr (std::is_same_v<Result, at::Tensor>) {
      const SpecPtr& spec = decision.outputs[0];
      auto local = Op::call(local_arg(args)...);
      if (C10_UNLIKELY(slot.info->traits.result_order_varies)) {
        local = in_memory_order(std::move(local), spec->strides());
      }
      auto result = wrap_fast(std::move(local), spec);
      if constexpr (kIsView) {
        const auto& base = std::get<0>(std::tie(args...));
        set_offset(result, base.storage_offset() + decision.offsets[0]);
        if (const auto& facts = meta_of(base).view_facts;
            C10_UNLIKELY(facts != nullptr)) {
          meta_of(result).view_facts = facts; // views that are copies take the
                                              // boxed path
        }
      }
      return result;
    } else {
      return wrap_fast(
          Op::call(local_arg(args)...),
          decision,
          std::make_index_sequence<std::tuple_size_v<Result>>());
    }
  }
};

/// Returns the unboxed kernels of `Op`.
template <class Op>
FastOp fast_op() {
  return {
      Op::name,
      Op::overload_name,
      [](std::shared_ptr<const OpInfo> info, bool above) {
        if (above) {
          using Kernel = FastKernel<Op, true>;
          Kernel::slot.set(std::move(info), true);
          return torch::CppFunction(TORCH_FN(Kernel::call));
        }
        using Kernel = FastKernel<Op, false>;
        Kernel::slot.set(std::move(info), false);
        return torch::CppFunction(TORCH_FN(Kernel::call));
      }};
}

} // namespace dtensor::detail
