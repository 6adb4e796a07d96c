// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/rendezvous_impl.h>

#include <dtensor/comm/backend/call_impl.h>
#include <dtensor/comm/collective_timeout.h>
#include <dtensor/comm/processes/backend_choice_impl.h>
#include <dtensor/error.h>

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <thread>

namespace dtensor::detail {
namespace {

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

std::string rank_key(int64_t rank) {
  return c10::str("rank/", rank);
}

std::vector<uint8_t> to_bytes(const std::string& text) {
  return {text.begin(), text.end()};
}

std::string text_at(c10d::Store& store, const std::string& key) {
  const auto bytes = store.get(key);
  return {bytes.begin(), bytes.end()};
}

// Describes the process that registered as `rank` first: "process 4711 on oak,
// which has ended".
std::string describe_rank_owner(
    c10d::Store& store,
    int64_t rank,
    const std::string& mine,
    const Peer& me) {
  if (!store.check({rank_key(rank)})) {
    return "another process";
  }
  const Peer first = check_greeting(text_at(store, rank_key(rank)), mine, rank);
  return detail::format_text(
      "process {} on {}{}",
      first.process.pid,
      first.host_name,
      first.host == me.host && has_ended(first.process) ? ", which has ended"
                                                        : "");
}

// Claims this process's rank. Only the first process that claims a rank is
// admitted, so two jobs at one address cannot mix.
void claim_rank(
    c10d::Store& store,
    const LaunchEnv& env,
    const std::string& mine,
    const Peer& me) {
  DTENSOR_CHECK(
      store.add(c10::str("seat/", env.rank), 1) == 1,
      "[init_process_group] rank {} is already registered by {}. Start each "
      "rank once, and give each job its own address, or its own file that does "
      "not exist yet.",
      env.rank,
      describe_rank_owner(store, env.rank, mine, me));
}

struct MissingRanks {
  std::vector<int64_t> first;
  bool all = true; // `first` is complete
};

// Collects missing ranks for a limited time, because checking a large world
// takes long.
MissingRanks missing_ranks(c10d::Store& store, int64_t size) {
  constexpr size_t kMost = 16;
  const auto deadline = std::chrono::steady_clock::now() + kGrace / 2;
  MissingRanks missing;
  try {
    for (int64_t rank = 0; rank < size; ++rank) {
      if (missing.first.size() == kMost ||
          std::chrono::steady_clock::now() > deadline) {
        missing.all = false;
        break;
      }
      if (!store.check({rank_key(rank)})) {
        missing.first.push_back(rank);
      }
    }
  } catch (const std::exception&) {
    DTENSOR_THROW(
        "[init_process_group] the store cannot be reached any more: the "
        "process that hosted it, rank 0 or the launcher, has ended. Check its "
        "output.");
  }
  return missing;
}

void throw_missing(
    c10d::Store& store,
    const LaunchEnv& env,
    std::chrono::milliseconds timeout) {
  // This process may host the store. It stays alive for a moment so that other
  // ranks can report the same missing ranks.
  constexpr auto kForOthers = std::chrono::milliseconds(1500);
  const auto missing = missing_ranks(store, env.size);
  if (env.rank == 0) {
    std::this_thread::sleep_for(kForOthers);
  }
  DTENSOR_THROW(
      "[init_process_group] {}{} of {} did not join within {} s. Check that "
      "they are running and can reach rank 0's host.",
      missing.first.empty() ? "some ranks" : rank_list(missing.first),
      missing.all ? "" : " and perhaps more",
      env.size,
      static_cast<double>(timeout.count()) / 1000.0);
}

std::vector<Peer> greet(
    c10d::Store& store,
    const LaunchEnv& env,
    std::chrono::milliseconds timeout) {
  const Peer me = myself();
  const std::string mine = greeting(env, me);
  claim_rank(store, env, mine, me);
  store.set(rank_key(env.rank), to_bytes(mine));
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
    peers.push_back(check_greeting(
        text_at(store, keys[static_cast<size_t>(rank)]), mine, rank));
  }
  return peers;
}

// Runs greet() with a deadline, because a store in a stopped process would
// block this process forever.
std::vector<Peer> greet_in_time(
    const StorePtr& store,
    const LaunchEnv& env,
    const ProcessGroupOptions& options) {
  // Time that greet() needs after its own wait has ended.
  constexpr auto kAfterwards = 2 * kGrace;
  auto peers = within_deadline<std::vector<Peer>>(
      std::chrono::steady_clock::now() + options.timeout + kAfterwards,
      [store, env, timeout = options.timeout] {
        return greet(*store, env, timeout);
      });
  DTENSOR_CHECK(
      peers.has_value(),
      "[init_process_group] {} no longer answers. Check that the process that "
      "hosts it, rank 0 or the launcher, is running.",
      store_text(env, options));
  return *std::move(peers);
}

// Combines the program's options with environment variables. Options take
// precedence.
LaunchEnv read_with(const ProcessGroupOptions& options) {
  const auto text = [](const std::optional<int64_t>& number) {
    return number ? std::to_string(*number) : std::string();
  };
  const std::string rank = text(options.rank);
  const std::string size = text(options.world_size);
  const auto lacks = [](const char* one, const char* other) {
    return std::getenv(one) == nullptr && std::getenv(other) != nullptr;
  };
  return read_launch_env([&](const char* name) -> const char* {
    const std::string_view which(name);
    if (which == "RANK" && options.rank && lacks("RANK", "WORLD_SIZE")) {
      return rank.c_str();
    }
    if (which == "WORLD_SIZE" && options.world_size &&
        lacks("WORLD_SIZE", "RANK")) {
      return size.c_str();
    }
    return std::getenv(name);
  });
}

} // namespace

ProcessGroupOptions with_checked_timeout(ProcessGroupOptions options) {
  DTENSOR_CHECK_VALUE(
      options.timeout.count() > 0,
      "[init_process_group] the timeout must be positive: {} ms. Leave it out "
      "for the default of 30 minutes.",
      options.timeout.count());
  options.timeout = std::min(options.timeout, kLongestTimeout);
  return options;
}

LaunchEnv read_rank_identity(const ProcessGroupOptions& options) {
  const bool says_all = options.rank && options.world_size;
  LaunchEnv env = says_all ? LaunchEnv() : read_with(options);
  env.rank = options.rank.value_or(env.rank);
  env.size = options.world_size.value_or(env.size);
  DTENSOR_CHECK_VALUE(
      env.rank >= 0 && env.rank < env.size,
      "[init_process_group] no rank {} in a world of {}. Pass both rank and "
      "world_size, or neither.",
      env.rank,
      env.size);
  check_world_size(env.size);
  return env;
}

Rendezvous meet(const LaunchEnv& env, const ProcessGroupOptions& given) {
  const ProcessGroupOptions options = with_checked_timeout(given);
  if (env.size == 1 || are_fake(choose_backends(options.backend))) {
    std::vector<Peer> peers(static_cast<size_t>(env.size));
    peers[static_cast<size_t>(env.rank)] = myself();
    return {.peers = std::move(peers)};
  }
  const Deadline deadline = std::chrono::steady_clock::now() + options.timeout;
  Rendezvous result{.store = open_store(env, options, deadline)};
  result.peers = greet_in_time(result.store, env, options);
  result.keeps_store = env.keeps_store() && file_of(*result.store).empty();
  result.store_port = port_of(*result.store);
  return result;
}

} // namespace dtensor::detail
