// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/membership_impl.h>

#include <dtensor/comm/backends.h>
#include <dtensor/comm/processes/mpi_impl.h>
#include <dtensor/error.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <cstdlib>
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
  const char* otherwise = std::getenv("DTENSOR_BACKEND");
  std::string name = !text.empty() ? cpu_backend(text)
      : otherwise != nullptr       ? cpu_backend(otherwise)
                                   : "auto";
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

// As Python's ranks understand it.
bool asks_for_checks() {
  const char* value = std::getenv("TORCH_DISTRIBUTED_DEBUG");
  return value != nullptr && std::string_view(value) == "DETAIL";
}

} // namespace

Membership::Membership(const LaunchEnv& env, const ProcessGroupOptions& options)
    : backend_(chosen(options.backend)),
      memory_(options.keep_freed_memory),
      timeout_(options.timeout),
      checks_(options.checks || asks_for_checks()),
      has_store_(env.keeps_store() && env.size > 1) {
  const bool by_mpi = uses_mpi(backend_) && env.size > 1;
  DTENSOR_CHECK_VALUE(
      !by_mpi || env.ranks_per_process <= 1,
      kWhere,
      "MPI's ranks are processes, and this one has ",
      env.ranks_per_process,
      " ranks. Use another backend than \"",
      backend_,
      "\", or one rank for each process.");
  if (by_mpi) { // where it cannot, on each rank before others wait for it
    load_mpi(backend_);
  }
  Rendezvous rendezvous = meet(env, options);
  const auto& me = rendezvous.peers[static_cast<size_t>(env.rank)];
  following_.record =
      std::make_shared<FlightRecord>(env.rank, env.size, me.host_name, env.job);
  following_.peers = std::make_shared<Peers>(env.rank, std::move(rendezvous));
  if (by_mpi) {
    begin_mpi(env.rank, env.size);
  }
}

void Membership::leave() {
  const int64_t size = following_.peers->size();
  if (size == 1) {
    return;
  }
  constexpr auto kRetry = std::chrono::milliseconds(2);
  constexpr const char* kLeft = "left";
  auto& store = following_.peers->store();
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  int64_t left = store.add(kLeft, 1);
  while (has_store_ && left < size &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kRetry);
    left = store.add(kLeft, 0);
  }
}

void Membership::fail(const std::string& why, bool is_cause) {
  following_.peers->tell(why, is_cause);
}

void Membership::disconnect(bool has_failed) {
  end_mpi(has_failed);
  const std::lock_guard lock(mutex_);
  backends_.clear();
}

void Membership::linger() {
  // mpirun kills all ranks when one ends by a failure.
  const bool is_awaited = has_store_ || uses_mpi(backend_);
  if (is_awaited && following_.peers->size() > 1) {
    following_.peers->linger();
  }
}

GroupBackendPtr Membership::backend(GroupMembers members) {
  const std::lock_guard lock(mutex_);
  GroupBackendPtr& backend = backends_[members.ranks];
  if (backend == nullptr) {
    MeetingPlace place;
    place.store = c10::make_intrusive<c10d::PrefixStore>(
        c10::str("group ", c10::Join(",", members.ranks)),
        following_.peers->store_ptr());
    place.timeout = timeout_;
    for (const int64_t rank : members.ranks) {
      place.hosts.push_back(following_.peers->host(rank));
    }
    auto carrier = find_backend(backend_)(std::move(members), place);
    backend = followed(
        checks_ ? checked(std::move(carrier)) : std::move(carrier), following_);
  }
  return backend;
}

} // namespace dtensor::detail
