// SPDX-License-Identifier: BSD-3-Clause
// Forward hooks for modules. torch::nn::Module has none, so a style that must
// see a module's inputs or outputs (PrepareModuleInput, or any style on a
// module without parameters) needs a module declared with DTENSOR_MODULE:
//
//   struct AttentionImpl : torch::nn::Module {
//     torch::Tensor forward(torch::Tensor x);
//   };
//   DTENSOR_MODULE(Attention);      // instead of TORCH_MODULE(Attention)
//
// Attention is then a holder as before, of a module that derives from
// AttentionImpl and runs the hooks around its forward, also inside Sequential.
// forward must not be overloaded, and is called with all of its arguments.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/api.h>
#include <dtensor/comm/observer.h>

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace dtensor {
namespace detail {

inline void collect_tensors(std::vector<at::Tensor*>& found, at::Tensor& t) {
  found.push_back(&t);
}
inline void collect_tensors(
    std::vector<at::Tensor*>& found,
    std::vector<at::Tensor>& list) {
  for (auto& t : list) {
    found.push_back(&t);
  }
}
template <class... Items>
void collect_tensors(
    std::vector<at::Tensor*>& found,
    std::tuple<Items...>& items);
template <class Other>
void collect_tensors(std::vector<at::Tensor*>&, Other&) {}
template <class... Items>
void collect_tensors(
    std::vector<at::Tensor*>& found,
    std::tuple<Items...>& items) {
  std::apply(
      [&](auto&... item) { (collect_tensors(found, item), ...); }, items);
}

/// What holds an argument while hooks look at it: a copy, so that hooks never
/// change the caller's tensors, but for what forward may write to.
template <class Arg>
using HeldArg = std::conditional_t<
    std::is_lvalue_reference_v<Arg> &&
        !std::is_const_v<std::remove_reference_t<Arg>> &&
        !std::is_same_v<std::decay_t<Arg>, at::Tensor>,
    Arg,
    std::decay_t<Arg>>;

} // namespace detail

/// The hooks of one module. Non-tensor arguments are not seen; tensors may be
/// replaced through the pointers.
class DTENSOR_API ModuleHooks {
 public:
  using Hook = std::function<void(const std::vector<at::Tensor*>&)>;

  virtual ~ModuleHooks() = default;

  /// Runs before forward with its tensor arguments, in order of addition.
  void add_forward_pre_hook(Hook hook) {
    before_.push_back(std::move(hook));
  }
  /// Runs after forward with its tensor results, in order of addition.
  void add_forward_hook(Hook hook) {
    after_.push_back(std::move(hook));
  }
  /// Notes that `style` was applied to the module of that full name; false if
  /// it was before.
  bool mark_styled(const std::string& style, const std::string& module_name) {
    name_ = detail::keep_module_name(module_name);
    return styles_.insert(style).second;
  }

 protected:
  /// `forward` on the arguments, between the hooks if there are any.
  template <class Result, class... Args, class Forward>
  Result run_hooked(const Forward& forward, Args... args) const {
    if (before_.empty() && after_.empty()) {
      return forward(std::forward<Args>(args)...);
    }
    const detail::ModuleScope scope(name_);
    std::tuple<detail::HeldArg<Args>...> held(std::forward<Args>(args)...);
    run(before_, held);
    auto result = std::apply(
        [&](auto&... arg) -> Result {
          return forward(std::forward<Args>(arg)...);
        },
        held);
    run(after_, result);
    return result;
  }

 private:
  template <class Values>
  static void run(const std::vector<Hook>& hooks, Values& values) {
    std::vector<at::Tensor*> tensors;
    detail::collect_tensors(tensors, values);
    for (const auto& hook : hooks) {
      hook(tensors);
    }
  }

  std::vector<Hook> before_;
  std::vector<Hook> after_;
  std::set<std::string> styles_;
  std::string_view name_;
};

namespace detail {

/// forward with the signature of Impl::forward, so that AnyModule and
/// Sequential can name it.
template <class Impl, class Signature>
class HookedForward;

template <class Impl, class Result, class Class, class... Args>
class HookedForward<Impl, Result (Class::*)(Args...)> : public Impl,
                                                        public ModuleHooks {
 public:
  using Impl::Impl;

  Result forward(Args... args) {
    return this->template run_hooked<Result, Args...>(
        [this](Args... given) -> Result {
          return Impl::forward(std::forward<Args>(given)...);
        },
        std::forward<Args>(args)...);
  }
};

template <class Impl, class Result, class Class, class... Args>
class HookedForward<Impl, Result (Class::*)(Args...) const>
    : public Impl, public ModuleHooks {
 public:
  using Impl::Impl;

  Result forward(Args... args) const {
    return this->template run_hooked<Result, Args...>(
        [this](Args... given) -> Result {
          return Impl::forward(std::forward<Args>(given)...);
        },
        std::forward<Args>(args)...);
  }
};

} // namespace detail

/// Impl with hooks around forward. Copies made by Impl's clone() have none.
template <class Impl>
class Hooked : public detail::HookedForward<Impl, decltype(&Impl::forward)> {
 public:
  using detail::HookedForward<Impl, decltype(&Impl::forward)>::HookedForward;
};

} // namespace dtensor

/// Declares the holder `Name` of module `Impl`, with hooks.
#define DTENSOR_MODULE_IMPL(Name, ImplType) \
  TORCH_MODULE_IMPL(Name, ::dtensor::Hooked<ImplType>)

/// Stands where TORCH_MODULE(Name) stood, for a module NameImpl.
#define DTENSOR_MODULE(Name) DTENSOR_MODULE_IMPL(Name, Name##Impl)
