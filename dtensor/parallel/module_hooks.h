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
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/api.h>

#include <functional>
#include <set>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace dtensor {

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
  /// Notes that `style` was applied; false if it was before.
  bool mark_styled(const std::string& style) {
    return styles_.insert(style).second;
  }

 protected:
  void run_before(const std::vector<at::Tensor*>& inputs) const {
    for (const auto& hook : before_) {
      hook(inputs);
    }
  }
  void run_after(const std::vector<at::Tensor*>& outputs) const {
    for (const auto& hook : after_) {
      hook(outputs);
    }
  }
  bool has_hooks() const {
    return !before_.empty() || !after_.empty();
  }

 private:
  std::vector<Hook> before_;
  std::vector<Hook> after_;
  std::set<std::string> styles_;
};

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

/// forward with the signature of Impl::forward (which must not be overloaded),
/// so that AnyModule and Sequential can name it.
template <class Impl, class Signature>
class HookedForward;

template <class Impl, class Result, class Class, class... Args>
class HookedForward<Impl, Result (Class::*)(Args...)> : public Impl,
                                                        public ModuleHooks {
 public:
  using Impl::Impl;

  Result forward(Args... args) {
    if (!this->has_hooks()) {
      return Impl::forward(std::forward<Args>(args)...);
    }
    std::tuple<std::decay_t<Args>...> held(std::forward<Args>(args)...);
    std::vector<at::Tensor*> inputs;
    collect_tensors(inputs, held);
    this->run_before(inputs);
    auto result = std::apply(
        [this](auto&... arg) -> Result {
          return Impl::forward(static_cast<Args>(arg)...);
        },
        held);
    std::vector<at::Tensor*> outputs;
    collect_tensors(outputs, result);
    this->run_after(outputs);
    return result;
  }
};

template <class Impl, class Result, class Class, class... Args>
class HookedForward<Impl, Result (Class::*)(Args...) const>
    : public HookedForward<Impl, Result (Class::*)(Args...)> {
 public:
  using HookedForward<Impl, Result (Class::*)(Args...)>::HookedForward;
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
