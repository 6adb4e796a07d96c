// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/hybrid/run_hybrid_impl.h>

#include <dtensor/comm/backend/message_of_impl.h>
#include <dtensor/comm/hybrid/hybrid_rank_impl.h>
#include <dtensor/comm/processes/session_impl.h>
#include <dtensor/comm/threads/rank_threads_impl.h>

#include <cxxabi.h>

#include <algorithm>
#include <vector>

namespace dtensor::detail {
namespace {

constexpr const char* kRunWorld = "run_world";

// Derives the environment of one rank from that of its process.
LaunchEnv env_of(LaunchEnv process, const LocalRanks& here, int64_t rank) {
  process.rank = rank;
  process.size = here.of;
  process.local_size *= here.count;
  return process;
}

// Drops the rank's groups and membership, so that ranks waiting for it notice.
void abandon(HybridRank& world, const std::string& why, bool is_cause) {
  Membership* const mine = world.membership();
  if (mine != nullptr) {
    world.end();
    mine->abandon(why, is_cause);
  }
}

// Body of each rank's thread.
void run_rank(
    HybridRank& world,
    const LaunchEnv& env,
    const std::function<void()>& fn,
    const ProcessGroupOptions& options) {
  try {
    world.join(env, options);
    fn();
    world.membership()->leave();
  } catch (const RankEnded& error) {
    abandon(world, error.what(), /*is_cause=*/false);
    throw;
  } catch (const std::exception& error) {
    abandon(world, message_of(error), /*is_cause=*/true);
    throw;
  } catch (const abi::__forced_unwind&) { // pthread_exit or cancellation
    abandon(
        world, "its thread was terminated by pthread_exit", /*is_cause=*/true);
    throw;
  } catch (...) {
    abandon(
        world,
        "an exception not derived from std::exception",
        /*is_cause=*/true);
    throw;
  }
}

} // namespace

GroupBackendPtr HybridRank::make_backend(GroupMembers members) {
  const LocalRanks& here = hub_->here();
  const bool is_here = std::ranges::all_of(
      members.ranks, [&](int64_t member) { return here.have(member); });
  return is_here ? std::make_shared<ThreadBackend>(std::move(members), hub_)
                 : membership_->backend(members);
}

LinkCost HybridRank::link_cost(
    const std::vector<int64_t>& ranks,
    c10::DeviceType device,
    const std::string& backend) const {
  const int64_t per_process = hub_->here().count;
  const bool is_one_process = std::ranges::all_of(ranks, [&](int64_t rank) {
    return rank / per_process == ranks.front() / per_process;
  });
  return is_one_process && backend.empty()
      ? World::link_cost(ranks, device, backend)
      : membership_->link_cost(ranks, device, backend);
}

void run_hybrid(
    int64_t here,
    const std::function<void()>& fn,
    const RunWorldOptions& options) {
  LaunchEnv process = read_rank_identity(options.processes);
  process.session = next_session();
  process.ranks_per_process = here;
  const LocalRanks ranks{process.rank * here, here, process.size * here};
  std::vector<std::shared_ptr<HybridRank>> worlds;
  RankThreads threads(
      kRunWorld,
      ranks,
      options.threads,
      [&](std::shared_ptr<ThreadHub> hub, int64_t rank) {
        worlds.push_back(std::make_shared<HybridRank>(std::move(hub), rank));
        return worlds.back();
      });
  try {
    threads.run(kRunWorld, [&](int64_t rank) {
      run_rank(
          *worlds[static_cast<size_t>(rank - ranks.first)],
          env_of(process, ranks, rank),
          fn,
          options.processes);
    });
  } catch (...) {
    if (Membership* const first = worlds.front()->membership()) {
      first->linger();
    }
    throw;
  }
  threads.take_over_generator();
}

} // namespace dtensor::detail
