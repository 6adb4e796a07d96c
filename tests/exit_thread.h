// SPDX-License-Identifier: BSD-3-Clause
// Ends a thread without a return.
#pragma once

#include <dlfcn.h>
#include <pthread.h>

namespace dtensor::test {

[[noreturn]] inline void exit_thread() {
  // Sanitized code calls this function before a call that does not return, to
  // clear the marks of the frames that end. Tests are compiled without
  // sanitizers and must call this function themselves.
  using Handle = void();
  if (auto* handle = reinterpret_cast<Handle*>(
          dlsym(RTLD_DEFAULT, "__asan_handle_no_return"))) {
    handle();
  }
  pthread_exit(nullptr);
}

} // namespace dtensor::test
