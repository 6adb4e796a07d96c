// SPDX-License-Identifier: BSD-3-Clause
// ModuleHooks: hooks that run before and after the forward of one module.
// Include module_hooks.h instead of this header.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <dtensor/api.h>
#include <dtensor/comm/observer.h>

#include <array>
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

template <class T>
inline constexpr bool is_tuple = false;
template <class... Items>
inline constexpr bool is_tuple<std::tuple<Items...>> = true;

/// Adds pointers to the tensors in `value` to `found`.
template <class T>
void collect_tensors(std::vector<at::Tensor*>& found, T& value) {
  if constexpr (std::is_base_of_v<at::Tensor, T>) { // or DTensor
    found.push_back(&value);
  } else if constexpr (std::is_same_v<T, std::vector<at::Tensor>>) {
    for (auto& t : value) {
      found.push_back(&t);
    }
  } else if constexpr (is_tuple<T>) {
    std::apply(
        [&](auto&... item) { (collect_tensors(found, item), ...); }, value);
  }
}

/// Type that holds an argument while hooks run. A tensor is copied, so that
/// hooks never change the caller's tensors. Any other non-const reference stays
/// a reference, because forward may write to the argument.
template <class Arg>
using HeldArg = std::conditional_t<
    std::is_lvalue_reference_v<Arg> &&
        !std::is_const_v<std::remove_reference_t<Arg>> &&
        !std::is_convertible_v<Arg, at::Tensor&>,
    Arg,
    std::decay_t<Arg>>;

/// Returns the tensor variable that `arg` refers to; null for other arguments,
/// and for tensors that are const or temporary.
template <class Arg>
at::Tensor* tensor_variable(Arg&& arg) {
  if constexpr (std::is_convertible_v<Arg&&, at::Tensor&>) {
    return &arg;
  } else {
    return nullptr;
  }
}

/// Assigns a tensor that forward rebinds to the caller's variable.
struct Rebinding {
  at::Tensor* caller; // null: forward cannot rebind the caller's variable
  at::Tensor* held;
  at::Tensor before = caller == nullptr ? at::Tensor() : *held;
  ~Rebinding() {
    if (caller != nullptr && !held->is_same(before)) {
      *caller = *held;
    }
  }
};

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
  void add_forward_pre_hook(Hook hook);
  /// Adds a hook that runs after forward with its tensor results. Hooks run in
  /// the order of addition.
  void add_forward_hook(Hook hook);
  /// Adds a scope that opens before the first forward pre-hook and closes after
  /// the last forward hook.
  void add_forward_scope(Scope scope);
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
      const std::string& layouts = "");

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
    static_assert(
        !std::is_reference_v<Result>,
        "forward returns a reference, which hooks cannot replace. Return a "
        "value.");
    if (!has_hooks() && name_.empty()) {
      return forward(std::forward<Args>(args)...);
    }
    try {
      const detail::ModuleScope scope(name_);
      if (!has_hooks()) {
        return forward(std::forward<Args>(args)...);
      }
      const auto opened = open_scopes();
      std::tuple<detail::HeldArg<Args>...> held(std::forward<Args>(args)...);
      run(before_, held);
      const auto call = [&](auto&... arg) -> Result {
        [[maybe_unused]] const std::array<detail::Rebinding, sizeof...(Args)>
            rebindings{detail::Rebinding{
                detail::tensor_variable(std::forward<Args>(args)),
                detail::tensor_variable(arg)}...};
        return forward(std::forward<Args>(arg)...);
      };
      if constexpr (std::is_void_v<Result>) {
        std::apply(call, held);
        std::tuple<> none;
        run(after_, none);
      } else {
        auto result = std::apply(call, held);
        run(after_, result);
        return result;
      }
    } catch (c10::Error& error) {
      name_module_in(error);
      throw;
    }
  }

 private:
  void name_module_in(c10::Error& error) const;
  std::vector<std::shared_ptr<void>> open_scopes() const;

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
