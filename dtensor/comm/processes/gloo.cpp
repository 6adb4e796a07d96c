// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/built_in_backends_impl.h>

#include <dtensor/comm/backend/message_of_impl.h>
#include <dtensor/comm/c10d_group.h>
#include <dtensor/error.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <cxxabi.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <mutex>
#include <string_view>
#include <typeinfo>

namespace dtensor::detail {
namespace {

// Errors in Gloo's own threads. If a message has another size than the
// receiver's buffer (ranks call different collectives, for example), or if a
// connection fails while Gloo answers a message, Gloo throws in a thread
// without a handler. Such an exception would end the process.
struct Failure {
  std::mutex mutex;
  std::string text;
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

// Installs a terminate handler. From then on, a thread that throws an exception
// of Gloo stops permanently instead of ending the process. The main thread and
// exceptions of other types end the process as before.
void stop_failing_gloo_threads() {
  static std::once_flag once;
  std::call_once(once, [] {
    failure().otherwise = std::set_terminate(stop_thread_or_end);
  });
}

auto make_device(const RendezvousInfo& place) {
  using Gloo = c10d::ProcessGroupGloo;
  if (place.is_on_one_host()) {
    return Gloo::createDeviceForHostname("127.0.0.1");
  }
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  return interface != nullptr ? Gloo::createDeviceForInterface(interface)
                              : Gloo::createDefaultDevice();
}

} // namespace

std::string gloo_thread_failure() {
  const std::lock_guard lock(failure().mutex);
  return failure().text;
}

GroupBackendPtr make_gloo(GroupMembers members, const RendezvousInfo& place) {
  stop_failing_gloo_threads();
  try {
    auto options = c10d::ProcessGroupGloo::Options::create(place.timeout);
    options->devices.push_back(make_device(place));
    auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(
        place.store,
        static_cast<int>(members.rank),
        static_cast<int>(members.ranks.size()),
        std::move(options));
    // Waits until all ranks are connected. Otherwise a rank could drop the
    // group, and close its connections while another rank still waits for them
    // in the constructor ("Connection closed by peer").
    gloo->barrier()->wait();
    return c10d_group(std::move(gloo), std::move(members));
  } catch (const std::exception& error) {
    DTENSOR_THROW(
        "[gloo] the {} ranks of \"{}\" could not be connected: {}. Check that "
        "all of them are running, and set GLOO_SOCKET_IFNAME to the interface "
        "through which hosts reach each other.",
        members.ranks.size(),
        members.label,
        message_of(error));
  }
}

} // namespace dtensor::detail
