// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/threads/rank_threads_impl.h>

#include <unistd.h>

#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>

namespace dtensor::detail {
namespace {

std::atomic<int64_t> running_worlds{0};

// Ends the process if ranks are running. Exit handlers run in reverse order of
// registration, so destructors of earlier static objects have not run yet.
void end_process(int status, void* /*unused*/) {
  if (running_worlds.load() > 0) {
    std::cout.flush();
    std::clog.flush();
    std::fflush(nullptr);
    _exit(status);
  }
}

// exit() first destroys the thread-local objects of its thread. A handler
// registered at that time runs before all others, and therefore before the
// destructors of globals that were created while ranks ran.
struct ThreadExit {
  int64_t watched = 0;
  ThreadExit() = default;
  ThreadExit(const ThreadExit&) = delete;
  ThreadExit& operator=(const ThreadExit&) = delete;
  ~ThreadExit() {
    if (watched > 0 && running_worlds.load() > 0) {
      on_exit(end_process, nullptr);
    }
  }
};

thread_local ThreadExit thread_exit;

// The main thread loads the library, and only exit() destroys its thread-local
// objects.
[[maybe_unused]] const int64_t main_thread_watched = ++thread_exit.watched;

} // namespace

RankThreadGuard::RankThreadGuard() {
  ++thread_exit.watched;
}

RankThreadGuard::~RankThreadGuard() {
  --thread_exit.watched;
}

void ExitGuard::register_after_ranks() {
  on_exit(end_process, nullptr);
}

// Registers the handler again after 1, 2, 4, ... runs. exit() runs handlers in
// reverse order, so static objects created since the last registration would be
// destroyed before the handler runs.
ExitGuard::ExitGuard() {
  static std::atomic<uint64_t> runs{0};
  if (std::has_single_bit(runs.fetch_add(1) + 1)) {
    on_exit(end_process, nullptr);
  }
  running_worlds.fetch_add(1);
}

ExitGuard::~ExitGuard() {
  running_worlds.fetch_sub(1);
}

} // namespace dtensor::detail
