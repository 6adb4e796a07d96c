// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/backend/gloo_threads_impl.h>

#include <dtensor/format_text.h>

#include <cxxabi.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string_view>
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

// Compares names, because no header that LibTorch installs declares the types:
// EnforceNotMet and IoException.
bool is_of_gloo(const std::type_info* type) {
  return type != nullptr &&
      std::string_view(type->name()).starts_with("N4gloo");
}

// Returns true if the exception says that a message had an unexpected size.
bool is_of_sizes(const std::type_info& type) {
  return std::string_view(type.name()) == "N4gloo13EnforceNotMetE";
}

void keep_text(const std::type_info& type) {
  Failure& only = failure();
  try {
    throw;
  } catch (const std::exception& error) {
    const std::lock_guard lock(only.mutex);
    only.text = is_of_sizes(type)
        ? detail::format_text(
              "the ranks called different collectives, as a message has an "
              "unexpected size: {}. Call the same collectives on every rank.",
              error.what())
        : detail::format_text("a connection failed: {}.", error.what());
    only.is_set.store(true);
  }
}

// Terminate handler; runs with the uncaught exception.
void stop_thread_or_end() {
  const std::type_info* type = abi::__cxa_current_exception_type();
  if (is_of_gloo(type) && gettid() != getpid()) { // main is not Gloo's thread
    keep_text(*type);
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
