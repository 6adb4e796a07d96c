// SPDX-License-Identifier: BSD-3-Clause
// Recorded: while it lives, those who observe LibTorch's operators
// (at::RecordFunction: its profilers, and debug/trace.h) see a range of that
// name. One look at the thread's callbacks where nobody does.
#pragma once

#include <ATen/record_function.h>

#include <optional>
#include <string_view>
#include <utility>

namespace dtensor::detail {

class Recorded {
 public:
  /// `name` is a literal: "dtensor::all_reduce".
  explicit Recorded(std::string_view name) {
    auto callbacks =
        at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
    if (C10_UNLIKELY(callbacks.has_value())) {
      range_.emplace(std::move(*callbacks));
      range_->before(name);
    }
  }

 private:
  std::optional<at::RecordFunction> range_;
};

} // namespace dtensor::detail
