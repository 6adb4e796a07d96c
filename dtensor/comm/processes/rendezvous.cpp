// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/rendezvous_impl.h>

#include <dtensor/comm/call_impl.h>
#include <dtensor/comm/collective_timeout.h>
#include <dtensor/comm/message_of_impl.h>
#include <dtensor/comm/processes/backend_choice_impl.h>
#include <dtensor/comm/processes/sockets_impl.h>
#include <dtensor/comm/processes/where_impl.h>
#include <dtensor/error.h>
#include <dtensor/version.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <unistd.h>

#include <charconv>
#include <climits>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace dtensor::detail {
namespace {

constexpr const char* kLoopback = "127.0.0.1";

// A store in the process of rank 0.
StorePtr serve(const std::string& host, int port) {
  Descriptor socket = listen_at(host, port);
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = socket.release();
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

// LibTorch would try once more after its timeout, and print why it does.
StorePtr reach(const std::string& host, int port, Deadline deadline) {
  constexpr std::chrono::milliseconds kToAnswer(1000);
  await_listener(host, port, deadline);
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
    DTENSOR_CHECK(
        false,
        kInitProcessGroup,
        "the store at ",
        host,
        ":",
        port,
        " does not answer: ",
        message_of(error),
        " Look whether MASTER_ADDR and MASTER_PORT are those of this job.");
  }
}

StorePtr at_address(
    const std::string& host,
    int port,
    const LaunchEnv& env,
    Deadline deadline) {
  return env.keeps_store() ? serve(host, port) : reach(host, port, deadline);
}

// A name for this job among those of the host. Ranks have one parent, unless
// the launcher starts them by shells.
std::string local_name(const LaunchEnv& env) {
  return c10::str(
      "dtensor/",
      geteuid(),
      "/",
      env.launcher,
      "/",
      env.job.empty() ? std::to_string(getppid()) : env.job,
      "/",
      env.attempt,
      "/",
      env.session);
}

StorePtr within_host(const LaunchEnv& env, Deadline deadline) {
  const std::string name = local_name(env);
  if (env.rank != 0) {
    const std::string port = fetch(name, deadline);
    return reach(kLoopback, std::stoi(port), deadline);
  }
  auto store = serve(kLoopback, 0);
  const auto& tcp = static_cast<const c10d::TCPStore&>(*store);
  hand_out(name, std::to_string(tcp.getPort()), env.size - 1, deadline);
  return store;
}

// host and port of "tcp://host:port".
std::pair<std::string, int> parse_tcp(const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = 0;
  const char* const end = address.data() + address.size();
  if (colon != std::string::npos) {
    std::from_chars(address.data() + colon + 1, end, port);
  }
  DTENSOR_CHECK_VALUE(
      port > 0 && colon > 0,
      kInitProcessGroup,
      "no host and port in \"tcp://",
      address,
      "\". Write tcp://host:port.");
  return {address.substr(0, colon), port};
}

StorePtr
by_method(const std::string& method, const LaunchEnv& env, Deadline deadline) {
  constexpr std::string_view kTcp = "tcp://";
  constexpr std::string_view kFile = "file://";
  if (method.starts_with(kTcp)) {
    const auto [host, port] = parse_tcp(method.substr(kTcp.size()));
    return at_address(host, port, env, deadline);
  }
  if (method.starts_with(kFile)) {
    return c10::make_intrusive<c10d::FileStore>(
        method.substr(kFile.size()), static_cast<int>(env.size));
  }
  DTENSOR_CHECK_VALUE(
      method.empty() || method == "env://",
      kInitProcessGroup,
      "no such init_method: \"",
      method,
      "\". Use \"env://\", \"tcp://host:port\" or \"file:///path\".");
  if (!env.master_addr.empty()) {
    return at_address(env.master_addr, env.master_port, env, deadline);
  }
  DTENSOR_CHECK_VALUE(
      env.local_size == env.size,
      kInitProcessGroup,
      "nothing says where the ",
      env.size,
      " ranks meet: ",
      env.launcher.empty() ? "the program was not started by a launcher"
                           : env.launcher + " runs them on several hosts",
      ". Set MASTER_ADDR and MASTER_PORT, or use an init_method.");
  return within_host(env, deadline);
}

StorePtr open_store(const LaunchEnv& env, const ProcessGroupOptions& options) {
  auto store = options.store != nullptr
      ? options.store
      : by_method(
            options.init_method,
            env,
            std::chrono::steady_clock::now() +
                std::min(options.timeout, kLongestTimeout));
  store->setTimeout(options.timeout);
  return c10::make_intrusive<c10d::PrefixStore>(
      c10::str("dtensor/", env.attempt, "/", env.session), std::move(store));
}

std::string link_text(const char* path) {
  std::error_code wrong;
  return std::filesystem::read_symlink(path, wrong).string();
}

Peer myself() {
  Peer me;
  std::array<char, HOST_NAME_MAX + 1> name{};
  gethostname(name.data(), name.size() - 1);
  me.host_name = name.data();
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  boot >> me.host;
  me.host += link_text("/proc/self/ns/net") + link_text("/proc/self/ns/pid");
  me.process = this_process();
  return me;
}

// Peers write it a field a line; the first lines have to be equal.
std::string greeting(const LaunchEnv& env, const Peer& peer) {
  return c10::str(
      "dtensor ",
      DTENSOR_VERSION_MAJOR,
      ".",
      DTENSOR_VERSION_MINOR,
      ".",
      DTENSOR_VERSION_PATCH,
      "\njob ",
      env.job,
      "\n",
      env.size,
      " ranks\n",
      peer.host_name,
      "\n",
      peer.host,
      "\n",
      peer.process.pid,
      " ",
      peer.process.started,
      "\n");
}

// Throws unless rank `rank` is one of ours.
Peer check_greeting(
    const std::string& theirs,
    const std::string& mine,
    int64_t rank) {
  std::istringstream their_lines(theirs.substr(0, 4096));
  std::istringstream my_lines(mine);
  std::string their_line;
  std::string my_line;
  for (int i = 0; i < 3; ++i) {
    std::getline(their_lines, their_line);
    std::getline(my_lines, my_line);
    DTENSOR_CHECK(
        their_line == my_line,
        kInitProcessGroup,
        "what came as rank ",
        rank,
        " is none of these ranks: it says \"",
        their_line.substr(0, 80),
        "\", and this process \"",
        my_line,
        "\". Start all ranks of one job, with one version of dtensor, and no "
        "other at its address.");
  }
  Peer peer;
  std::getline(their_lines, peer.host_name);
  std::getline(their_lines, peer.host);
  their_lines >> peer.process.pid >> peer.process.started;
  return peer;
}

std::string rank_key(int64_t rank) {
  return c10::str("rank/", rank);
}

std::vector<int64_t> missing_ranks(c10d::Store& store, int64_t size) {
  std::vector<int64_t> missing;
  try {
    for (int64_t rank = 0; rank < size; ++rank) {
      if (!store.check({rank_key(rank)})) {
        missing.push_back(rank);
      }
    }
  } catch (const std::exception&) {
    DTENSOR_CHECK(
        false,
        kInitProcessGroup,
        "the store cannot be reached any more: the process that kept it, rank "
        "0 or the launcher, has ended. Look at what it printed.");
  }
  return missing;
}

void throw_missing(
    c10d::Store& store,
    const LaunchEnv& env,
    std::chrono::milliseconds timeout) {
  // The store may be in this process: others have to find the same.
  constexpr auto kForOthers = std::chrono::milliseconds(1500);
  const auto missing = missing_ranks(store, env.size);
  if (env.rank == 0) {
    std::this_thread::sleep_for(kForOthers);
  }
  DTENSOR_CHECK(
      false,
      kInitProcessGroup,
      rank_list(missing),
      " of ",
      env.size,
      " did not come within ",
      static_cast<double>(timeout.count()) / 1000.0,
      " s. Look whether they run, and whether they reach rank 0's host.");
}

std::vector<Peer> greet(
    c10d::Store& store,
    const LaunchEnv& env,
    std::chrono::milliseconds timeout) {
  const std::string mine = greeting(env, myself());
  store.set(rank_key(env.rank), std::vector<uint8_t>(mine.begin(), mine.end()));
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < env.size; ++rank) {
    keys.push_back(rank_key(rank));
  }
  try {
    store.wait(keys, timeout);
  } catch (const std::exception&) {
    throw_missing(store, env, timeout);
  }
  std::vector<Peer> peers;
  for (int64_t rank = 0; rank < env.size; ++rank) {
    const auto bytes = store.get(keys[static_cast<size_t>(rank)]);
    peers.push_back(check_greeting({bytes.begin(), bytes.end()}, mine, rank));
  }
  return peers;
}

} // namespace

LaunchEnv who_am_i(const ProcessGroupOptions& options) {
  const bool says_all = options.rank && options.world_size;
  LaunchEnv env = says_all ? LaunchEnv() : read_launch_env();
  env.rank = options.rank.value_or(env.rank);
  env.size = options.world_size.value_or(env.size);
  DTENSOR_CHECK_VALUE(
      env.rank >= 0 && env.rank < env.size,
      kInitProcessGroup,
      "no rank ",
      env.rank,
      " in a world of ",
      env.size,
      ". Pass both, rank and world_size, or neither.");
  return env;
}

Rendezvous meet(const LaunchEnv& env, const ProcessGroupOptions& options) {
  if (env.size == 1 || are_fake(choose_backends(options.backend))) {
    std::vector<Peer> peers(static_cast<size_t>(env.size));
    peers[static_cast<size_t>(env.rank)] = myself();
    return {nullptr, std::move(peers)};
  }
  Rendezvous result{open_store(env, options), {}};
  result.peers = greet(*result.store, env, options.timeout);
  return result;
}

} // namespace dtensor::detail
