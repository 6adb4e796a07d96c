// SPDX-License-Identifier: BSD-3-Clause
#include "store.h"

#include <c10/util/Logging.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cstdlib>
#include <cstring>
#include <future>
#include <stdexcept>
#include <thread>

#include "fd.h"
#include "options.h"
#include "signals.h"

namespace launcher {
namespace {

constexpr const char* kPrefix = "dtensor_run/";

[[noreturn]] void
cannot_listen(const std::string& host, uint16_t port, const char* reason) {
  throw UsageError(fmt::format(
      "cannot listen at {}:{}: {}. Pass an address of this host, which is node "
      "0, and a free port.",
      host,
      port,
      reason));
}

// Returns a socket bound to this address only, because c10d's own socket would
// listen on all addresses.
Fd bind_to(const std::string& host, uint16_t port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const auto service = std::to_string(port);
  const int error =
      ::getaddrinfo(host.c_str(), service.c_str(), &hints, &found);
  if (error != 0) {
    cannot_listen(host, port, ::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> freed(
      found, ::freeaddrinfo);
  Fd fd(checked(
      ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0),
      "cannot make a socket"));
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (::bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0) {
    cannot_listen(host, port, ::strerror(errno));
  }
  return fd;
}

uint16_t port_of(int fd) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  checked(
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size),
      "cannot read the port");
  return ntohs(
      address.ss_family == AF_INET
          ? reinterpret_cast<const sockaddr_in&>(address).sin_port
          : reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
}

// Restricts c10d's log to errors, unless the user has set a log level. The
// launcher reports a lost store in one sentence, without c10d's stack trace.
void quieten_c10d() {
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) {
    FLAGS_caffe2_log_level = 2; // errors
  }
}

c10d::TCPStoreOptions store_options(uint16_t port) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.waitWorkers = false;
  return options;
}

// Connects with a timeout. c10d's client waits forever if the server accepts
// but does not answer, so it runs in a thread, which is abandoned in that case.
std::shared_ptr<c10d::Store> connect(
    const std::string& host,
    const c10d::TCPStoreOptions& options) {
  constexpr auto kGrace = std::chrono::seconds(1);
  std::packaged_task<std::shared_ptr<c10d::Store>()> task([host, options] {
    return std::make_shared<c10d::TCPStore>(host, options);
  });
  auto store = task.get_future();
  {
    const AllSignalsBlocked blocked;
    std::thread(std::move(task)).detach();
  }
  if (store.wait_for(options.timeout + kGrace) != std::future_status::ready) {
    throw std::runtime_error("silent");
  }
  return store.get();
}

} // namespace

std::shared_ptr<Store> Store::serve(const std::string& host, uint16_t port) {
  quieten_c10d();
  const AllSignalsBlocked blocked; // inherited by the server's thread
  Fd listening = bind_to(host, port);
  auto options = store_options(port_of(listening.get()));
  options.isServer = true;
  options.masterListenFd = listening.release();
  return std::make_shared<Store>(
      host, options.port, std::make_shared<c10d::TCPStore>(host, options));
}

std::shared_ptr<Store> Store::join(
    const std::string& host,
    uint16_t port,
    std::chrono::seconds timeout) {
  quieten_c10d();
  auto options = store_options(port);
  options.timeout = timeout;
  try {
    return std::make_shared<Store>(host, port, connect(host, options));
  } catch (const std::exception&) {
    throw UsageError(fmt::format(
        "node 0 does not answer at {}:{}. Start dtensor-run there with "
        "--node-rank 0 and the same --rdzv.",
        host,
        port));
  }
}

Store::Store(
    std::string host,
    uint16_t port,
    std::shared_ptr<c10d::Store> store)
    : host_(std::move(host)),
      port_(port),
      store_(std::move(store)) {}

void Store::set(const std::string& key, const std::string& value) {
  store_->set(kPrefix + key, value);
}

void Store::set_once(const std::string& key, const std::string& value) {
  store_->compareSet(kPrefix + key, "", value);
}

bool Store::has(const std::string& key) {
  return store_->check({kPrefix + key});
}

std::string Store::get(const std::string& key) {
  return store_->get_to_str(kPrefix + key);
}

int64_t Store::add(const std::string& key, int64_t number) {
  return store_->add(kPrefix + key, number);
}

} // namespace launcher
