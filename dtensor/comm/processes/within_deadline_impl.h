// SPDX-License-Identifier: BSD-3-Clause
// within_deadline(): runs a function that may block forever, such as a call of
// a store whose process is stopped.
#pragma once

#include <dtensor/comm/processes/sockets_impl.h>

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace dtensor::detail {

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
