// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/membership_impl.h>

#include <dtensor/comm/processes/mpi_impl.h>
#include <dtensor/error.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <cstdlib>
#include <thread>

namespace dtensor::detail {
namespace {

// As Python's ranks understand it.
bool asks_for_checks() {
  const char* value = std::getenv("TORCH_DISTRIBUTED_DEBUG");
  return value != nullptr && std::string_view(value) == "DETAIL";
}

// The name of that which communicates by MPI; empty: none does.
std::string mpi_among(const ChosenBackends& chosen) {
  for (const ChosenBackend& one : chosen) {
    if (uses_mpi(one.name)) {
      return one.name;
    }
  }
  return "";
}

} // namespace

Membership::Membership(const LaunchEnv& env, const ProcessGroupOptions& options)
    : chosen_(choose_backends(options.backend)),
      memory_(options.keep_freed_memory),
      timeout_(options.timeout),
      checks_(options.checks || asks_for_checks()),
      mpi_(env.size > 1 ? mpi_among(chosen_) : "") {
  DTENSOR_CHECK_VALUE(
      mpi_.empty() || env.ranks_per_process <= 1,
      "init_process_group",
      "MPI's ranks are processes, and this one has ",
      env.ranks_per_process,
      " ranks. Use another backend than \"",
      mpi_,
      "\", or one rank for each process.");
  if (!mpi_.empty()) { // where it cannot, on each rank before others wait for
                       // it
    load_mpi(mpi_);
  }
  Rendezvous rendezvous = meet(env, options);
  has_store_ = rendezvous.store != nullptr && env.keeps_store();
  const auto& me = rendezvous.peers[static_cast<size_t>(env.rank)];
  following_.record =
      std::make_shared<FlightRecord>(env.rank, env.size, me.host_name, env.job);
  following_.peers = std::make_shared<Peers>(env.rank, std::move(rendezvous));
  if (!mpi_.empty()) {
    begin_mpi(env.rank, env.size);
  }
}

void Membership::leave() {
  if (following_.peers->store_ptr() == nullptr) {
    return;
  }
  constexpr auto kRetry = std::chrono::milliseconds(2);
  constexpr const char* kLeft = "left";
  auto& store = following_.peers->store();
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  int64_t left = store.add(kLeft, 1);
  while (has_store_ && left < following_.peers->size() &&
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
  if (has_store_ || !mpi_.empty()) {
    following_.peers->linger();
  }
}

GroupBackendPtr Membership::backend(GroupMembers members) {
  const std::lock_guard lock(mutex_);
  GroupBackendPtr& backend = backends_[members.ranks];
  if (backend != nullptr) {
    return backend;
  }
  MeetingPlace place;
  if (are_fake(chosen_)) {
    backend = make_chosen(chosen_, std::move(members), place);
    return backend;
  }
  place.store = c10::make_intrusive<c10d::PrefixStore>(
      c10::str("group ", c10::Join(",", members.ranks)),
      following_.peers->store_ptr());
  place.timeout = timeout_;
  for (const int64_t rank : members.ranks) {
    place.hosts.push_back(following_.peers->host(rank));
  }
  auto carrier = make_chosen(chosen_, std::move(members), place);
  backend = followed(
      checks_ ? checked(std::move(carrier)) : std::move(carrier), following_);
  return backend;
}

} // namespace dtensor::detail
