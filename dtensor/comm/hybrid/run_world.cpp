// SPDX-License-Identifier: BSD-3-Clause
// run_world(): selects threads, processes, or threads of several processes.
// Also runs ranks that are threads of several processes.
#include <dtensor/comm/run_world.h>

#include <dtensor/comm/backend/message_of_impl.h>
#include <dtensor/comm/processes/launch_env_impl.h>
#include <dtensor/comm/processes/membership_impl.h>
#include <dtensor/comm/threads/rank_threads_impl.h>
#include <dtensor/comm/threads/thread_backend_impl.h>
#include <dtensor/comm/world.h>
#include <dtensor/error.h>

#include <cxxabi.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace dtensor::detail {
namespace {

constexpr const char* kRunWorld = "run_world";

// A rank in a world of several processes with several threads each. Groups
// inside one process meet as threads do. In all other groups, the rank acts
// like a process, with a membership of its own.
class HybridRank final : public MemberWorld {
 public:
  HybridRank(std::shared_ptr<ThreadHub> hub, int64_t rank)
      : MemberWorld(rank, hub->size(), "run_world"),
        hub_(std::move(hub)) {}

  LinkCost link_cost(
      const std::vector<int64_t>& ranks,
      c10::DeviceType device,
      const std::string& backend) const override;
  const void* shared() const override {
    return hub_.get();
  }

 protected:
  GroupBackendPtr make_backend(GroupMembers members) override;

 private:
  std::shared_ptr<ThreadHub> hub_;
};

GroupBackendPtr HybridRank::make_backend(GroupMembers members) {
  const LocalRanks& here = hub_->here();
  const bool is_here = std::ranges::all_of(
      members.ranks, [&](int64_t member) { return here.have(member); });
  return is_here ? std::make_shared<ThreadBackend>(std::move(members), hub_)
                 : MemberWorld::make_backend(std::move(members));
}

LinkCost HybridRank::link_cost(
    const std::vector<int64_t>& ranks,
    c10::DeviceType device,
    const std::string& backend) const {
  const int64_t per_process = hub_->here().count;
  const bool is_one_process = std::ranges::all_of(ranks, [&](int64_t rank) {
    return rank / per_process == ranks.front() / per_process;
  });
  if (is_one_process && backend.empty()) {
    // NOLINTNEXTLINE(bugprone-parent-virtual-call): the cost between threads
    return World::link_cost(ranks, device, backend);
  }
  return MemberWorld::link_cost(ranks, device, backend);
}

// Derives the environment of one rank from that of its process.
LaunchEnv env_of(LaunchEnv process, const LocalRanks& here, int64_t rank) {
  process.rank = rank;
  process.size = here.of;
  process.local_size *= here.count;
  return process;
}

// Calls `fn`. If it throws, calls abandon(why, is_cause) and rethrows.
// `is_cause` is false if another rank's failure ended this rank.
template <typename Fn, typename Abandon>
void call_or_abandon(const Fn& fn, const Abandon& abandon) {
  try {
    fn();
  } catch (const RankEnded& error) {
    abandon(error.what(), /*is_cause=*/false);
    throw;
  } catch (const std::exception& error) {
    abandon(message_of(error), /*is_cause=*/true);
    throw;
  } catch (const abi::__forced_unwind&) { // pthread_exit or cancellation
    abandon("its thread was terminated by pthread_exit", /*is_cause=*/true);
    throw;
  } catch (...) {
    abandon("an exception not derived from std::exception", /*is_cause=*/true);
    throw;
  }
}

// Runs `fn` in a rank's thread.
void run_rank(
    HybridRank& world,
    const LaunchEnv& env,
    const std::function<void()>& fn,
    const ProcessGroupOptions& options) {
  const auto join_and_run = [&] {
    world.join(env, options);
    fn();
    world.membership()->leave();
  };
  // Drops the rank's groups and membership, so that ranks waiting for it
  // notice.
  const auto abandon = [&](const std::string& why, bool is_cause) {
    if (Membership* const mine = world.membership()) {
      world.end();
      mine->abandon(why, is_cause);
    }
  };
  call_or_abandon(join_and_run, abandon);
}

// Runs `fn` on `here` threads of this process. The threads of all of the
// launcher's processes are the ranks of one world: thread i of process p is
// rank p * here + i. Throws as run_ranks does, and also if a rank of another
// process has failed.
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

} // namespace
} // namespace dtensor::detail

namespace dtensor {
namespace {

void run_processes(
    const std::function<void()>& fn,
    const ProcessGroupOptions& options) {
  init_process_group(options);
  detail::call_or_abandon(fn, [](const std::string& why, bool /*is_cause*/) {
    detail::abandon_process_group(why);
  });
  destroy_process_group();
}

} // namespace

std::optional<Launched> launched() {
  const auto env = detail::read_launch_env();
  if (env.launcher.empty()) {
    return std::nullopt;
  }
  const int64_t here = std::max<int64_t>(1, env.ranks_per_process);
  return Launched{env.rank * here, env.size * here};
}

void run_world(
    int64_t ranks,
    const std::function<void()>& fn,
    const RunWorldOptions& options) {
  if (!launched()) {
    run_ranks(ranks, fn, options.threads);
    return;
  }
  DTENSOR_CHECK_VALUE(
      options.ranks_per_process >= 0,
      "[run_world] ranks_per_process is {}. Pass the number of ranks (threads) "
      "per process, or leave it out.",
      options.ranks_per_process);
  const int64_t here = options.ranks_per_process > 0
      ? options.ranks_per_process
      : detail::read_launch_env().ranks_per_process;
  if (here > 1) {
    detail::run_hybrid(here, fn, options);
  } else {
    run_processes(fn, options.processes);
  }
}

} // namespace dtensor
