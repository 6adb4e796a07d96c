// SPDX-License-Identifier: BSD-3-Clause
// Layouts that a collective converts between, for messages about differing
// calls.
#pragma once

#include <dtensor/layout/spec.h>

#include <utility>

namespace dtensor::detail {

/// Marks this thread's collectives, while it lives, as a redistribution between
/// two layouts.
class RedistributionScope {
 public:
  RedistributionScope(const Spec& from, const Spec& to)
      : from_(from),
        to_(to),
        outer_(std::exchange(innermost(), this)) {}
  ~RedistributionScope() {
    innermost() = outer_;
  }
  RedistributionScope(const RedistributionScope&) = delete;
  RedistributionScope& operator=(const RedistributionScope&) = delete;

  /// Returns the innermost scope, or null.
  static const RedistributionScope* current() {
    return innermost();
  }

  const Spec& from() const {
    return from_;
  }
  const Spec& to() const {
    return to_;
  }

 private:
  static const RedistributionScope*& innermost() {
    thread_local const RedistributionScope* scope = nullptr;
    return scope;
  }

  const Spec& from_;
  const Spec& to_;
  const RedistributionScope* outer_;
};

} // namespace dtensor::detail
