// SPDX-License-Identifier: BSD-3-Clause
// Ends a thread without a return.
#pragma once

#include <pthread.h>

// Defined by the address sanitizer. Sanitized code calls it before a call that
// does not return, to clear the marks of the frames that are about to vanish.
// Tests are compiled without sanitizers and must call it themselves.
extern "C" void __asan_handle_no_return() __attribute__((weak));

namespace dtensor::test {

[[noreturn]] inline void exit_thread() {
  if (&__asan_handle_no_return != nullptr) {
    __asan_handle_no_return();
  }
  pthread_exit(nullptr);
}

} // namespace dtensor::test
