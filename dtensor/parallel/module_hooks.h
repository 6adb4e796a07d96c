// SPDX-License-Identifier: BSD-3-Clause
// Forward hooks for modules. torch::nn::Module has no hooks. A style that acts
// on a module's inputs or outputs (PrepareModuleInput, or any style for a
// module without parameters) therefore needs a module declared with
// DTENSOR_MODULE:
//
//   struct AttentionImpl : torch::nn::Module {
//     torch::Tensor forward(torch::Tensor x);
//   };
//   DTENSOR_MODULE(Attention);      // instead of TORCH_MODULE(Attention)
//
// Attention is still a module holder. Its module derives from AttentionImpl and
// runs the hooks around forward, also inside Sequential. Calls must pass all
// arguments of forward, including those with defaults. An overloaded or
// templated forward keeps all its signatures, but must be called as
// ->forward(). As in LibTorch, Sequential, AnyModule and the holder's call
// operator do not support such a forward.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <dtensor/parallel/hook_list.h>

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace torch::nn {
class Module;
}

namespace dtensor {
namespace detail {

/// Impl with hooks that clone() copies.
template <class Impl>
class CloneableHooks : public Impl, public ModuleHooks {
 public:
  using Impl::Impl;
  CloneableHooks(const Impl& impl, const ModuleHooks& hooks)
      : Impl(impl),
        ModuleHooks(hooks) {}

 protected:
  // Clones the module. LibTorch's clone() of a parent assigns the clones of its
  // children to existing modules, Impl to Impl, and so drops the hooks. An
  // undefined parameter, which no other code reads, therefore carries the name
  // of the stored hooks.
  template <class Self>
  std::shared_ptr<Self> clone_as(
      const std::optional<c10::Device>& device) const {
    restore_cloned_hooks();
    const auto impl =
        std::dynamic_pointer_cast<Impl>(this->Impl::clone(device));
    auto copy = std::make_shared<Self>(
        static_cast<const Impl&>(*impl),
        static_cast<const ModuleHooks&>(*this));
    if (has_hooks()) {
      copy->parameters_.insert(stash_hooks(), at::Tensor());
    }
    return copy;
  }
  void restore_cloned_hooks() const {
    auto& self = const_cast<CloneableHooks&>(*this);
    for (const auto& name : self.parameters_.keys()) {
      if (self.restore_hooks(name)) {
        self.parameters_.erase(name);
      }
    }
  }
};

/// Base with a forward of the same signature as Impl::forward, so that
/// AnyModule and Sequential can name it.
template <class Impl, class Signature>
class HookedForward;

template <class Impl, class Result, class Class, class... Args>
class HookedForward<Impl, Result (Class::*)(Args...)>
    : public CloneableHooks<Impl> {
 public:
  using CloneableHooks<Impl>::CloneableHooks;

  Result forward(Args... args) {
    this->restore_cloned_hooks();
    return this->template run_hooked<Result, Args...>(
        [this](Args... given) -> Result {
          return Impl::forward(std::forward<Args>(given)...);
        },
        std::forward<Args>(args)...);
  }
};

template <class Impl, class Result, class Class, class... Args>
class HookedForward<Impl, Result (Class::*)(Args...) const>
    : public CloneableHooks<Impl> {
 public:
  using CloneableHooks<Impl>::CloneableHooks;

  Result forward(Args... args) const {
    this->restore_cloned_hooks();
    return this->template run_hooked<Result, Args...>(
        [this](Args... given) -> Result {
          return Impl::forward(std::forward<Args>(given)...);
        },
        std::forward<Args>(args)...);
  }
};

/// Base for an Impl whose forward is overloaded or a template.
template <class Impl>
class HookedForwards : public CloneableHooks<Impl> {
 public:
  using CloneableHooks<Impl>::CloneableHooks;

  template <class... Args>
  requires requires(Impl& impl, Args&&... args) {
    impl.forward(std::forward<Args>(args)...);
  }
  auto forward(Args&&... args) {
    using Result =
        decltype(std::declval<Impl&>().forward(std::forward<Args>(args)...));
    this->restore_cloned_hooks();
    return this->template run_hooked<Result, Args&&...>(
        [this](auto&&... given) -> Result {
          return this->Impl::forward(static_cast<Args&&>(given)...);
        },
        std::forward<Args>(args)...);
  }
};

template <class Impl>
struct WithForward {
  using type = HookedForwards<Impl>;
};
template <class Impl>
requires requires {
  &Impl::forward;
}
struct WithForward<Impl> {
  using type = HookedForward<Impl, decltype(&Impl::forward)>;
};

} // namespace detail

/// Impl with hooks around forward.
template <class Impl>
class Hooked : public detail::WithForward<Impl>::type {
  using Base = typename detail::WithForward<Impl>::type;

 public:
  using Base::Base;

  /// Clones like Impl, and copies the hooks.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<c10::Device>& device = std::nullopt) const override {
    if constexpr (std::is_copy_constructible_v<Impl>) {
      return this->template clone_as<Hooked>(device);
    } else {
      return Impl::clone(device);
    }
  }
};

} // namespace dtensor

/// Declares the holder `Name` of module `Impl`, with hooks.
#define DTENSOR_MODULE_IMPL(Name, ImplType) \
  TORCH_MODULE_IMPL(Name, ::dtensor::Hooked<ImplType>)

/// Replaces TORCH_MODULE(Name) for a module NameImpl.
#define DTENSOR_MODULE(Name) DTENSOR_MODULE_IMPL(Name, Name##Impl)
