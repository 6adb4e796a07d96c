// SPDX-License-Identifier: BSD-3-Clause
// What layouts a collective is for: ranks that compare their calls say it.
#pragma once

#include <dtensor/layout/spec.h>

#include <utility>

namespace dtensor::detail {

/// While it lives, collectives of this thread bring a tensor from one layout to
/// another one.
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

  /// Null outside of all.
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
