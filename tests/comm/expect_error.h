// SPDX-License-Identifier: BSD-3-Clause
// error_of(): returns the text of the error that a call throws, and checks the
// error's exact type.
#pragma once

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <string>
#include <typeinfo>

namespace dtensor::test {

template <typename Error = c10::Error, typename Fn>
std::string error_of(const Fn& fn) {
  try {
    fn();
  } catch (const c10::Error& error) {
    EXPECT_EQ(std::string(typeid(error).name()), typeid(Error).name());
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

} // namespace dtensor::test
