// SPDX-License-Identifier: BSD-3-Clause
// Returns the error that a call throws, as text. comm/expect_error.h
// additionally checks that the error has exactly the expected type, not a
// derived one.
#pragma once

#include <c10/util/Exception.h>

#include <string>

namespace dtensor::test_text {

/// Returns the text of the `Error` that `fn` throws.
template <typename Error = c10::Error, typename Fn>
std::string error_of(const Fn& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

} // namespace dtensor::test_text
