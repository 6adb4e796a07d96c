// SPDX-License-Identifier: BSD-3-Clause
// ModuleHooks: hooks that run before and after the forward of one module.
// Include module_hooks.h instead of this header.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <dtensor/api.h>
#include <dtensor/comm/observer.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace dtensor {
namespace detail {

/// True for at::Tensor and DTensor.
template <class T>
inline constexpr bool is_any_tensor =
    std::is_base_of_v<at::Tensor, std::decay_t<T>>;

template <class T>
requires is_any_tensor<T>
void collect_tensors(std::vector<at::Tensor*>& found, T& t) {
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

/// Type that holds an argument while hooks run. A copy, so that hooks never
/// change the caller's tensors. A non-const reference stays a reference,
/// because forward may write to the argument.
template <class Arg>
using HeldArg = std::conditional_t<
    std::is_lvalue_reference_v<Arg> &&
        !std::is_const_v<std::remove_reference_t<Arg>> && !is_any_tensor<Arg>,
    Arg,
    std::decay_t<Arg>>;

} // namespace detail

/// Hooks of one module. A hook gets only tensors, which it may replace through
/// the pointers.
class DTENSOR_API ModuleHooks {
 public:
  /// Called with the tensors among the arguments or results.
  using Hook = std::function<void(const std::vector<at::Tensor*>&)>;
  /// Returns an object that is destroyed when forward ends, normally or by an
  /// exception.
  using Scope = std::function<std::shared_ptr<void>()>;

  virtual ~ModuleHooks() = default;

  /// Adds a hook that runs before forward with its tensor arguments. Hooks run
  /// in the order of addition.
  void add_forward_pre_hook(Hook hook) {
    before_.push_back(std::move(hook));
  }
  /// Adds a hook that runs after forward with its tensor results. Hooks run in
  /// the order of addition.
  void add_forward_hook(Hook hook) {
    after_.push_back(std::move(hook));
  }
  /// Adds a scope that opens before the first forward pre-hook and closes after
  /// the last forward hook.
  void add_forward_scope(Scope scope) {
    scopes_.push_back(std::move(scope));
  }
  /// Full name of the module, to which operators in its forward are attributed
  /// (comm/observer.h). Empty if not set.
  std::string_view module_name() const {
    return name_;
  }
  /// Sets the name. `name` must live as long as the process.
  void set_module_name(std::string_view name) {
    name_ = name;
  }
  /// True if record_style() was called with `style`.
  bool has_style(const std::string& style) const {
    return styles_.count(style) > 0;
  }
  /// Records that `style` was applied to this module. Errors inside forward
  /// name the style and its `layouts`, such as "input S(1) -> R".
  void record_style(
      const std::string& style,
      const std::string& module_name,
      const std::string& layouts = "") {
    name_ = detail::keep_module_name(module_name);
    styles_.emplace(style, layouts);
  }

 protected:
  /// Returns true if any hook is registered.
  bool has_hooks() const {
    return !before_.empty() || !after_.empty() || !scopes_.empty();
  }

  /// Stores a copy of the hooks on this rank and returns a name for
  /// restore_hooks().
  std::string stash_hooks() const;
  /// Moves the hooks stored under `name` to this module, or drops them if it
  /// has hooks. Returns false, and does nothing, for a name that is not from
  /// stash_hooks(). Throws RuntimeError if another rank stored them.
  bool restore_hooks(const std::string& name);

  /// Runs the hooks and `forward`. Attributes operators to the module's name,
  /// and adds the name to errors.
  template <class Result, class... Args, class Forward>
  Result run_hooked(const Forward& forward, Args... args) const {
    if (!has_hooks() && name_.empty()) {
      return forward(std::forward<Args>(args)...);
    }
    try {
      const detail::ModuleScope scope(name_);
      std::vector<std::shared_ptr<void>> opened;
      for (const auto& open : scopes_) {
        opened.push_back(open());
      }
      std::tuple<detail::HeldArg<Args>...> held(std::forward<Args>(args)...);
      run(before_, held);
      auto result = std::apply(
          [&](auto&... arg) -> Result {
            return forward(std::forward<Args>(arg)...);
          },
          held);
      run(after_, result);
      return result;
    } catch (c10::Error& error) {
      name_module_in(error);
      throw;
    }
  }

 private:
  void name_module_in(c10::Error& error) const;

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
  std::vector<Scope> scopes_;
  std::map<std::string, std::string> styles_; // name -> layouts
  std::string_view name_;
};

} // namespace dtensor
