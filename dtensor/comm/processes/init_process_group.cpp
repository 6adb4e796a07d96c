// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/init_process_group.h>

#include <dtensor/comm/default_world.h>
#include <dtensor/comm/processes/membership_impl.h>
#include <dtensor/comm/world_impl.h>
#include <dtensor/error.h>

#include <atomic>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace dtensor {
namespace {

// This process's state as a rank, and the thread that called
// init_process_group().
struct Session {
  std::mutex mutex;
  std::shared_ptr<detail::MemberWorld> world;
  std::optional<WorldScope> scope;
  std::thread::id thread;
  int64_t forks = 0; // fork_count() at the start
};

// Returns the process's session. The session is never destroyed, because other
// static objects may still hold tensors of the world when the program exits.
Session& session() {
  static auto* const only = new Session;
  return *only;
}

// Returns true if `mine` was inherited from the process that forked this
// process.
bool is_parents(const Session& mine) {
  return mine.world != nullptr && mine.forks != detail::fork_count();
}

// Drops the session inherited from the parent without destroying it, because
// its connections and threads belong to the parent.
void forget(Session& mine) {
  static std::vector<std::shared_ptr<detail::MemberWorld>>* const kept =
      new std::vector<std::shared_ptr<detail::MemberWorld>>;
  kept->push_back(std::exchange(mine.world, nullptr));
  set_default_world(nullptr);
  mine.scope.reset();
}

// Ends this process's role as a rank.
void end(Session& mine) {
  mine.world->end();
  set_default_world(nullptr);
  mine.scope.reset();
}

} // namespace

int64_t detail::next_session() {
  static std::atomic<int64_t> begun{0};
  return begun++;
}

void detail::abandon_process_group(const std::string& why) {
  auto& mine = session();
  const std::lock_guard lock(mine.mutex);
  if (is_parents(mine)) {
    forget(mine);
  } else if (mine.world != nullptr) {
    end(mine);
    mine.world->membership()->abandon(why, /*is_cause=*/true);
    mine.world->membership()->linger();
    mine.world = nullptr;
  }
}

void init_process_group(const ProcessGroupOptions& options) {
  auto& mine = session();
  const std::lock_guard lock(mine.mutex);
  DTENSOR_CHECK(
      mine.world == nullptr && !detail::is_rank(),
      "[init_process_group] this process is {}. Call it once, outside of "
      "run_ranks, and call destroy_process_group before the next call.",
      is_parents(mine)            ? "forked from a rank"
          : mine.world != nullptr ? "already a rank"
                                  : "running ranks");
  auto env = detail::read_rank_identity(options);
  DTENSOR_CHECK_VALUE(
      env.ranks_per_process <= 1,
      "[init_process_group] DTENSOR_RANKS_PER_PROCESS is {}, but this process "
      "is one rank. Use run_world, whose ranks are threads of each process, or "
      "unset it.",
      env.ranks_per_process);
  env.session = detail::next_session();
  auto world = std::make_shared<detail::MemberWorld>(
      env.rank, env.size, "process group");
  world->join(env, options);
  mine.scope.emplace(world);
  set_default_world(world.get());
  mine.thread = std::this_thread::get_id();
  mine.forks = detail::fork_count();
  mine.world = std::move(world);
}

void destroy_process_group() {
  auto& mine = session();
  const std::lock_guard lock(mine.mutex);
  if (mine.world == nullptr) {
    return;
  }
  if (is_parents(mine)) {
    forget(mine);
    return;
  }
  DTENSOR_CHECK(
      mine.thread == std::this_thread::get_id(),
      "[destroy_process_group] this is not the thread that called "
      "init_process_group. Call both in one thread.");
  mine.world->membership()->leave();
  end(mine);
  mine.world->membership()->disconnect();
  mine.world = nullptr;
}

bool is_initialized() {
  auto& mine = session();
  const std::lock_guard lock(mine.mutex);
  return mine.world != nullptr;
}

int64_t get_node_local_rank() {
  return current_world().node_local_rank();
}

} // namespace dtensor
