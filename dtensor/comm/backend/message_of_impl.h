// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>
#include <string_view>

namespace dtensor::detail {

/// Returns the error's message without LibTorch's backtrace.
inline const char* message_of(const std::exception& error) {
  const auto* theirs = dynamic_cast<const c10::Error*>(&error);
  return theirs != nullptr ? theirs->what_without_backtrace() : error.what();
}

/// Returns the first line of message_of().
inline std::string first_line_of(const std::exception& error) {
  const std::string_view text = message_of(error);
  return std::string(text.substr(0, text.find('\n')));
}

} // namespace dtensor::detail
