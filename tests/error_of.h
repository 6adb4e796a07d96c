// SPDX-License-Identifier: BSD-3-Clause
// The error that a call throws, as a text. comm/expect_error.h also checks that
// its type is no other one derived from it.
#pragma once

#include <c10/util/Exception.h>

#include <string>

namespace dtensor::test_text {

/// The text of the `Error` that `fn` throws.
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
