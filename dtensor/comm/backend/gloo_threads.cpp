// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/backend/gloo_threads_impl.h>

#include <cxxabi.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <typeinfo>

namespace dtensor::detail {
namespace {

struct Failure {
  std::mutex mutex;
  std::string text;
  std::atomic<bool> is_set{false};
  std::terminate_handler otherwise = nullptr;
};

Failure& failure() {
  static auto* const only = new Failure;
  return *only;
}

// Compares names, because no header that LibTorch installs declares the type.
bool is_of_gloo(const std::type_info* type) {
  return type != nullptr &&
      std::strcmp(type->name(), "N4gloo13EnforceNotMetE") == 0;
}

void keep_text() {
  Failure& only = failure();
  try {
    throw;
  } catch (const std::exception& error) {
    const std::lock_guard lock(only.mutex);
    only.text = error.what();
    only.is_set.store(true);
  }
}

// Terminate handler; runs with the uncaught exception.
void stop_thread_or_end() {
  if (is_of_gloo(abi::__cxa_current_exception_type()) &&
      gettid() != getpid()) { // the main thread is not Gloo's
    keep_text();
    while (true) {
      pause();
    }
  }
  if (failure().otherwise != nullptr) {
    failure().otherwise();
  }
  std::abort();
}

} // namespace

void stop_failing_gloo_threads() {
  static std::once_flag once;
  std::call_once(once, [] {
    failure().otherwise = std::set_terminate(stop_thread_or_end);
  });
}

std::string gloo_thread_failure() {
  Failure& only = failure();
  if (!only.is_set.load()) {
    return "";
  }
  const std::lock_guard lock(only.mutex);
  return only.text;
}

} // namespace dtensor::detail
