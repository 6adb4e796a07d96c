// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/membership_impl.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <dtensor/comm/processes/built_in_backends_impl.h>
#include <dtensor/error.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>
#include <vector>

namespace dtensor::detail {
namespace {

// Returns true if TORCH_DISTRIBUTED_DEBUG is DETAIL, as in PyTorch.
bool requests_checks() {
  const char* value = std::getenv("TORCH_DISTRIBUTED_DEBUG");
  return value != nullptr && std::string_view(value) == "DETAIL";
}

// Returns the name of the chosen backend that communicates by MPI; "" if none
// does.
std::string mpi_among(const ChosenBackends& chosen) {
  for (const ChosenBackend& one : chosen) {
    if (uses_mpi(one.name)) {
      return one.name;
    }
  }
  return "";
}

// Copies rank 0's generator state to all ranks. This state includes the seed of
// DTensors' random numbers. (Ranks that are threads start with copies of one
// generator.)
void share_random_state(c10d::Store& store, int64_t rank) {
  constexpr const char* kKey = "random state";
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  if (rank == 0) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    const auto state = generator.get_state();
    const auto* const bytes = state.const_data_ptr<uint8_t>();
    store.set(kKey, std::vector<uint8_t>(bytes, bytes + state.numel()));
    return;
  }
  const auto bytes = store.get(kKey);
  const auto state = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  std::memcpy(state.mutable_data_ptr(), bytes.data(), bytes.size());
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

} // namespace

Membership::Membership(const LaunchEnv& env, const ProcessGroupOptions& options)
    : chosen_(choose_backends(options.backend)),
      memory_(options.keep_freed_memory),
      timeout_(with_checked_timeout(options).timeout),
      checks_(options.checks || requests_checks()),
      mpi_(env.size > 1 ? mpi_among(chosen_) : "") {
  DTENSOR_CHECK_VALUE(
      mpi_.empty() || env.ranks_per_process <= 1,
      "[init_process_group] MPI supports one rank per process, got {}. Use "
      "another backend than \"{}\", or one rank per process.",
      env.ranks_per_process,
      mpi_);
  DTENSOR_CHECK_VALUE(
      !are_fake(chosen_) || env.ranks_per_process <= 1,
      "[init_process_group] the fake backend supports one rank per process, "
      "got {}. Use another backend than \"fake\", or one rank per process.",
      env.ranks_per_process);
  if (!mpi_.empty()) {
    load_mpi(mpi_); // fail before other ranks wait for this one
  }
  Rendezvous rendezvous = meet(env, options);
  has_store_ = rendezvous.keeps_store;
  if (rendezvous.store != nullptr) {
    share_random_state(*rendezvous.store, env.rank);
  }
  const auto& me = rendezvous.peers[static_cast<size_t>(env.rank)];
  following_.record =
      std::make_shared<FlightRecord>(env.rank, env.size, me.host_name, env.job);
  following_.peers = std::make_shared<Peers>(env.rank, std::move(rendezvous));
  if (!mpi_.empty()) {
    begin_mpi(env.rank, env.size);
  }
}

void Membership::leave() {
  if (following_.peers->store_ptr() != nullptr) {
    following_.peers->leave(timeout_);
  }
}

void Membership::disconnect() {
  end_mpi(/*has_failed=*/false);
  const std::lock_guard lock(mutex_);
  backends_.clear();
}

void Membership::abandon(const std::string& why, bool is_cause) {
  IgnoreWriteSignals::for_good(); // peers may close connections later
  following_.peers->publish_failure(why, is_cause);
  end_mpi(/*has_failed=*/true);
  const std::lock_guard lock(mutex_);
  for (const auto& [key, backend] : backends_) {
    backend->abandon(why);
  }
  backends_.clear();
}

void Membership::linger() {
  // mpirun kills all ranks when one of them ends with a failure.
  if (has_store_ || !mpi_.empty()) {
    following_.peers->linger();
  }
}

GroupBackendPtr Membership::backend(
    const GroupMembers& members,
    const std::string& name) {
  const std::lock_guard lock(mutex_);
  const std::pair key(members.ranks, name);
  const auto found = backends_.find(key);
  if (found != backends_.end()) {
    return found->second;
  }
  // A backend that cannot be created is not cached.
  return backends_.emplace(key, make_backend(members, name)).first->second;
}

LinkCost Membership::link_cost(
    const std::vector<int64_t>& ranks,
    c10::DeviceType device,
    const std::string& backend) const {
  if (are_fake(chosen_)) {
    return {};
  }
  const auto& host = following_.peers->host(ranks.front());
  const bool is_on_one_host = std::ranges::all_of(ranks, [&](int64_t rank) {
    return following_.peers->host(rank) == host;
  });
  return typical_cost(
      backend.empty() ? chosen_ : choose_backends(backend),
      device,
      is_on_one_host);
}

GroupBackendPtr Membership::make_backend(
    const GroupMembers& members,
    const std::string& name) const {
  const auto chosen = name.empty() ? chosen_ : choose_backends(name);
  DTENSOR_CHECK_VALUE(
      mpi_among(chosen).empty() || mpi_among(chosen) == mpi_,
      "[new_group] the backend \"{}\" needs MPI, which init_process_group() "
      "initializes. Pass it there.",
      name);
  RendezvousInfo place;
  if (are_fake(chosen)) {
    return make_chosen(chosen, members, place);
  }
  place.store = c10::make_intrusive<c10d::PrefixStore>(
      detail::format_text("group {} {}", c10::Join(",", members.ranks), name),
      following_.peers->store_ptr());
  place.timeout = timeout_;
  for (const int64_t rank : members.ranks) {
    place.hosts.push_back(following_.peers->host(rank));
  }
  GroupBackendPtr carrier;
  try {
    carrier = make_chosen(chosen, members, place);
  } catch (const std::exception&) {
    rethrow_setup_error(following_, members.ranks);
  }
  return with_failure_reports(
      checks_ ? checked(std::move(carrier)) : std::move(carrier), following_);
}

} // namespace dtensor::detail
