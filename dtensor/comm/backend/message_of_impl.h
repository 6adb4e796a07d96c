// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/util/Exception.h>

#include <exception>

namespace dtensor::detail {

/// Returns the error's message without LibTorch's backtrace.
inline const char* message_of(const std::exception& error) {
  const auto* theirs = dynamic_cast<const c10::Error*>(&error);
  return theirs != nullptr ? theirs->what_without_backtrace() : error.what();
}

} // namespace dtensor::detail
