// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/process_world_impl.h>

#include <dtensor/comm/backends.h>
#include <dtensor/error.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <thread>

namespace dtensor::detail {
namespace {

constexpr const char* kWhere = "init_process_group";

// The backend for tensors of the CPU, of "name" or "cpu:name,cuda:other".
std::string cpu_backend(const std::string& text) {
  std::string rest = text;
  while (rest.find(':') != std::string::npos) {
    const size_t end = rest.find(',');
    const std::string item = rest.substr(0, end);
    const size_t colon = item.find(':');
    if (item.substr(0, colon) == "cpu") {
      return item.substr(colon + 1);
    }
    rest = end == std::string::npos ? "" : rest.substr(end + 1);
  }
  DTENSOR_CHECK_VALUE(
      !rest.empty(),
      kWhere,
      "no backend for the CPU in \"",
      text,
      "\". Add one: \"cpu:gloo\".");
  return rest;
}

std::string chosen(const std::string& text) {
  const std::string name = text.empty() ? "gloo" : cpu_backend(text);
  DTENSOR_CHECK_VALUE(
      find_backend(name) != nullptr,
      kWhere,
      "there is no backend \"",
      name,
      "\". Use one of: ",
      backend_names(),
      ".");
  return name;
}

} // namespace

ProcessWorld::ProcessWorld(
    const LaunchEnv& env,
    Rendezvous rendezvous,
    const std::string& backend,
    std::chrono::milliseconds timeout)
    : World(env.rank, env.size, "process group"),
      rendezvous_(std::move(rendezvous)),
      backend_(chosen(backend)),
      timeout_(timeout),
      has_store_(env.rank == 0 && !env.launcher_has_store) {}

int64_t ProcessWorld::local_rank() const {
  const auto& peers = rendezvous_.peers;
  const std::string& here = peers[static_cast<size_t>(rank())].host;
  return std::count_if(
      peers.begin(), peers.begin() + rank(), [&](const Peer& peer) {
        return peer.host == here;
      });
}

void ProcessWorld::leave() {
  if (rendezvous_.store == nullptr) {
    return;
  }
  constexpr auto kRetry = std::chrono::milliseconds(2);
  constexpr const char* kLeft = "left";
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  int64_t left = rendezvous_.store->add(kLeft, 1);
  while (has_store_ && left < size() &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kRetry);
    left = rendezvous_.store->add(kLeft, 0);
  }
}

GroupBackendPtr ProcessWorld::make_backend(GroupMembers members) {
  const std::lock_guard lock(mutex_);
  GroupBackendPtr& backend = backends_[members.ranks];
  if (backend == nullptr) {
    MeetingPlace place;
    place.store = c10::make_intrusive<c10d::PrefixStore>(
        c10::str("group ", c10::Join(",", members.ranks)), rendezvous_.store);
    place.timeout = timeout_;
    for (const int64_t rank : members.ranks) {
      place.hosts.push_back(rendezvous_.peers[static_cast<size_t>(rank)].host);
    }
    backend = find_backend(backend_)(std::move(members), place);
  }
  return backend;
}

} // namespace dtensor::detail
