// SPDX-License-Identifier: BSD-3-Clause
// The store for the rendezvous of the ranks of a job of processes: hosted by
// rank 0, by the launcher, or in a file.
#pragma once

#include <dtensor/comm/init_process_group.h>
#include <dtensor/comm/processes/launch_env_impl.h>
#include <dtensor/comm/processes/sockets_impl.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace dtensor::detail {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

/// Grace period after the deadline. It lets the called function report its own
/// error before the outer wait ends with an error.
inline constexpr auto kGrace = std::chrono::milliseconds(1500);

/// Opens the store that the options and environment variables name. The keys of
/// the store are prefixed with this attempt and session. Throws ValueError if
/// neither names a store, RuntimeError if the store cannot be opened by the
/// deadline.
StorePtr open_store(
    const LaunchEnv& env,
    const ProcessGroupOptions& options,
    Deadline deadline);

/// Returns the port of a TCPStore, looking through PrefixStores; 0 for other
/// stores.
int port_of(const c10d::Store& store);
/// Returns the path of a FileStore, looking through PrefixStores; "" for other
/// stores.
std::string file_of(const c10d::Store& store);

/// Describes the store for errors: "the store at oak:29500".
std::string store_text(
    const LaunchEnv& env,
    const ProcessGroupOptions& options);

// Rendezvous of ranks of one host and one user without an agreed port
// (local_meeting.cpp). Rank 0 listens at a name in the abstract socket
// namespace and sends each rank the port of its store.

/// Serves `port` at `name` to ranks 1 to `size` - 1, which must be processes of
/// this user. A name that is too long for a socket is hashed. Returns when all
/// ranks have received the port. The system frees the name when this process
/// ends. Throws RuntimeError at the deadline, or if another process uses the
/// name.
void hand_out_port(
    const std::string& name,
    int port,
    int64_t size,
    Deadline deadline);

/// Requests rank 0's port at `name`, as rank `rank`. Throws RuntimeError at the
/// deadline, or if rank 0 refuses or sends an invalid answer.
int fetch_port(const std::string& name, int64_t rank, Deadline deadline);

// Rendezvous through a file (meeting_file.cpp).

/// Checks that ranks can rendezvous through the file at `path`. Call this
/// function before a c10d::FileStore opens the file, because FileStore waits
/// forever on some files. The checks: the path is a regular file or does not
/// exist yet, this user may write it, its folder exists, no other process keeps
/// it locked until the deadline, and its content is that of a FileStore. Throws
/// ValueError, or RuntimeError if another process is the cause.
void check_meeting_file(const std::string& path, Deadline deadline);

/// Removes the file at `path` if the stores of all `ranks` have been destroyed.
/// c10d::FileStore leaves the file if two ranks destroy their stores at the
/// same moment: FileStore counts a store first as finished and then as closed,
/// and the last rank to close may not be the last rank to finish. Call this
/// function after the rank's own store has been destroyed.
void remove_finished_meeting_file(
    const std::string& path,
    int64_t ranks) noexcept;

// Calls of a store whose process may be stopped.

/// Runs `fn` in a separate thread. Returns the function's result or throws its
/// exception; returns nullopt if the function has not ended by the deadline.
/// The thread is then left running, so `fn` must own all data that it uses.
template <typename Result>
std::optional<Result> within_deadline(
    Deadline deadline,
    std::function<Result()> fn) {
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Result> result;
    std::exception_ptr error;
  };
  const auto state = std::make_shared<State>();
  std::thread([state, fn = std::move(fn)]() mutable {
    std::optional<Result> result;
    std::exception_ptr error;
    try {
      result = fn();
    } catch (...) {
      error = std::current_exception();
    }
    fn = nullptr; // destroyed before the caller continues
    const std::lock_guard lock(state->mutex);
    state->result = std::move(result);
    state->error = std::move(error);
    state->changed.notify_all();
  }).detach();
  std::unique_lock lock(state->mutex);
  state->changed.wait_until(
      lock, deadline, [&] { return state->result || state->error; });
  if (state->error) {
    std::rethrow_exception(std::exchange(state->error, nullptr));
  }
  return std::move(state->result);
}

} // namespace dtensor::detail
