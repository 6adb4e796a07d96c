// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/open_store_impl.h>

#include <dtensor/comm/backend/message_of_impl.h>
#include <dtensor/comm/processes/greeting_impl.h>
#include <dtensor/error.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace dtensor::detail {
namespace {

constexpr const char* kLoopback = "127.0.0.1";
constexpr std::string_view kTcp = "tcp://";
constexpr std::string_view kFile = "file://";

// Creates the store in rank 0's process.
StorePtr serve(const std::string& host, int port) {
  Descriptor socket = listen_at(host, port);
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = socket.release();
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

// Throws if the listener's answer is not that of a store. A listener that is
// silent or closes the connection may be a store that begins or ends.
void check_is_store(const std::string& host, int port, Deadline deadline) {
  const auto socket = await_listener(host, port, deadline);
  const auto request = store_request();
  std::array<char, 64> answer{};
  if (send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0 ||
      !is_ready(socket, POLLIN, deadline)) {
    return;
  }
  const auto count = recv(socket.get(), answer.data(), answer.size(), 0);
  const std::string_view bytes(
      answer.data(), static_cast<size_t>(std::max<ssize_t>(count, 0)));
  DTENSOR_CHECK(
      begins_store_answer(bytes),
      "[init_process_group] the service at {}:{} is not the store of a job: it "
      "answers {}. Set MASTER_ADDR and MASTER_PORT to an address of rank 0's "
      "host and a free port.",
      host,
      port,
      foreign_answer_text(bytes));
}

// Connects to a store. Waits for the listener by itself, because LibTorch's
// client would retry once more after its timeout and print the reason.
StorePtr reach(const std::string& host, int port, Deadline deadline) {
  constexpr std::chrono::milliseconds kToAnswer(1000);
  check_is_store(host, port, deadline);
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.waitWorkers = false;
  options.timeout = std::max(
      kToAnswer,
      std::chrono::ceil<std::chrono::milliseconds>(
          deadline - std::chrono::steady_clock::now()));
  try {
    return c10::make_intrusive<c10d::TCPStore>(host, options);
  } catch (const std::exception& error) {
    DTENSOR_THROW(
        "[init_process_group] the store at {}:{} does not answer: {} Check "
        "that MASTER_ADDR and MASTER_PORT are those of this job.",
        host,
        port,
        message_of(error));
  }
}

StorePtr at_address(
    const std::string& host,
    int port,
    const LaunchEnv& env,
    Deadline deadline) {
  constexpr size_t kLongestHost = 255; // of a name in the DNS
  DTENSOR_CHECK_VALUE(
      host.size() <= kLongestHost,
      "[init_process_group] the host name {} has {} bytes, more than the "
      "maximum of {}. Set MASTER_ADDR to the name or address of rank 0's host.",
      quoted(host),
      host.size(),
      kLongestHost);
  return env.keeps_store() ? serve(host, port) : reach(host, port, deadline);
}

// Returns a name that identifies this job on the host. A job without a name is
// identified by its parent process, which the ranks share unless the launcher
// starts them through shells.
std::string local_name(const LaunchEnv& env) {
  return detail::format_text(
      "dtensor/{}/{}/{}/{}/{}",
      geteuid(),
      env.launcher,
      env.job.empty() ? std::to_string(getppid()) : env.job,
      env.attempt,
      env.session);
}

StorePtr within_host(const LaunchEnv& env, Deadline deadline) {
  const std::string name = local_name(env);
  if (env.rank != 0) {
    return reach(kLoopback, fetch_port(name, env.rank, deadline), deadline);
  }
  auto store = serve(kLoopback, 0);
  const auto& tcp = static_cast<const c10d::TCPStore&>(*store);
  hand_out_port(name, tcp.getPort(), env.size, deadline);
  return store;
}

StorePtr
at_file(const std::string& path, const LaunchEnv& env, Deadline deadline) {
  check_meeting_file(path, deadline);
  return c10::make_intrusive<c10d::FileStore>(path, static_cast<int>(env.size));
}

StorePtr by_variables(const LaunchEnv& env, Deadline deadline) {
  if (!env.master_addr.empty()) {
    return at_address(env.master_addr, env.master_port, env, deadline);
  }
  DTENSOR_CHECK_VALUE(
      !env.launcher_has_store,
      "[init_process_group] TORCHELASTIC_USE_AGENT_STORE is True, but the "
      "address of the launcher's store is not set. Set MASTER_ADDR and "
      "MASTER_PORT, or unset it.");
  DTENSOR_CHECK_VALUE(
      env.local_size == env.size,
      "[init_process_group] no rendezvous address for {} ranks: {}. Set "
      "MASTER_ADDR and MASTER_PORT, or use an init_method.",
      env.size,
      env.launcher.empty()
          ? "the program was not started by a launcher"
          : env.local_size_text + ", so they may be on several hosts");
  return within_host(env, deadline);
}

StorePtr
by_method(const std::string& method, const LaunchEnv& env, Deadline deadline) {
  if (method.starts_with(kTcp)) {
    const auto [host, port] = parse_address(method.substr(kTcp.size()));
    return at_address(host, port, env, deadline);
  }
  if (method.starts_with(kFile)) {
    return at_file(method.substr(kFile.size()), env, deadline);
  }
  DTENSOR_CHECK_VALUE(
      method.empty() || method == "env://",
      "[init_process_group] unknown init_method: {}. Use \"env://\", "
      "\"tcp://host:port\" or \"file:///path\".",
      quoted(method));
  return by_variables(env, deadline);
}

// Opens the store with a deadline, because a peer that accepts connections but
// never answers would block LibTorch's client forever.
StorePtr found(
    const LaunchEnv& env,
    const ProcessGroupOptions& options,
    Deadline deadline) {
  auto store = within_deadline<StorePtr>(
      deadline + kGrace, [method = options.init_method, env, deadline] {
        return by_method(method, env, deadline);
      });
  DTENSOR_CHECK(
      store.has_value(),
      "[init_process_group] {} did not answer within {} s. Check that the "
      "process that listens there is the store of this job.",
      store_text(env, options),
      static_cast<double>(options.timeout.count()) / 1000.0);
  return *std::move(store);
}

const c10d::Store& without_prefixes(const c10d::Store& store) {
  // The cast is needed because getUnderlyingStore() is not const.
  auto* inner = const_cast<c10d::Store*>(&store);
  while (auto* const prefixed = dynamic_cast<c10d::PrefixStore*>(inner)) {
    inner = prefixed->getUnderlyingStore().get();
  }
  return *inner;
}

} // namespace

int port_of(const c10d::Store& store) {
  const auto* tcp =
      dynamic_cast<const c10d::TCPStore*>(&without_prefixes(store));
  return tcp == nullptr ? 0 : tcp->getPort();
}

std::string file_of(const c10d::Store& store) {
  const auto* file =
      dynamic_cast<const c10d::FileStore*>(&without_prefixes(store));
  return file == nullptr ? "" : file->getPath();
}

StorePtr open_store(
    const LaunchEnv& env,
    const ProcessGroupOptions& options,
    Deadline deadline) {
  auto store =
      options.store != nullptr ? options.store : found(env, options, deadline);
  store->setTimeout(options.timeout);
  return c10::make_intrusive<c10d::PrefixStore>(
      detail::format_text("dtensor/{}/{}", env.attempt, env.session),
      std::move(store));
}

std::string store_text(
    const LaunchEnv& env,
    const ProcessGroupOptions& options) {
  if (options.store != nullptr) {
    return "the store that the program passed";
  }
  const std::string& method = options.init_method;
  if (method.starts_with(kTcp)) {
    return "the store at " + method.substr(kTcp.size());
  }
  if (method.starts_with(kFile)) {
    return "the file " + method.substr(kFile.size());
  }
  return env.master_addr.empty()
      ? "the store of rank 0 on this host"
      : detail::format_text(
            "the store at {}:{}", env.master_addr, env.master_port);
}

} // namespace dtensor::detail
