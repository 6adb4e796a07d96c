// SPDX-License-Identifier: BSD-3-Clause
// Recorded: a named range for observers of LibTorch's operators
// (at::RecordFunction), such as LibTorch's profilers and debug/trace.h. Without
// observers, a Recorded costs one check of the thread's callbacks.
#pragma once

#include <ATen/record_function.h>

#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

namespace dtensor::detail {

class Recorded {
 public:
  /// `name` is a literal, such as "dtensor::all_reduce", or a function that
  /// returns a literal. The function is called only if there are observers.
  explicit Recorded(std::string_view name) : Recorded([&] { return name; }) {}
  template <typename Name>
  requires std::is_invocable_v<Name>
  explicit Recorded(const Name& name) {
    auto callbacks =
        at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
    if (C10_UNLIKELY(callbacks.has_value())) {
      range_.emplace(std::move(*callbacks));
      range_->before(name());
    }
  }

 private:
  std::optional<at::RecordFunction> range_;
};

} // namespace dtensor::detail
