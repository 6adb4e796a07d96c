// SPDX-License-Identifier: BSD-3-Clause
// Timeouts of single groups and collectives, in place of the world's timeout
// (RunRanksOptions::timeout, ProcessGroupOptions::timeout):
//
//   const std::chrono::hours hour(1);
//   auto slow = new_group(ranks, "checkpoint", {.timeout = hour});
//   {
//     const CollectiveTimeout limit(std::chrono::seconds(5));
//     group->barrier();   // an error after five seconds
//   }
#pragma once

#include <dtensor/api.h>

#include <chrono>
#include <memory>

namespace dtensor {

class GroupBackend;

/// Scope that sets the timeout of the collectives that this thread enters, and
/// of the asynchronous collectives that this thread waits for, in place of the
/// group's timeout. The innermost scope applies. Over c10d, an asynchronous
/// collective keeps the timeout that was in effect when the rank entered it,
/// and point-to-point messages keep the group's. Throws ValueError unless
/// `timeout` is positive. Python: the argument `timeout` of
/// torch.distributed.monitored_barrier and Work.wait.
class DTENSOR_API CollectiveTimeout {
 public:
  explicit CollectiveTimeout(std::chrono::milliseconds timeout);
  ~CollectiveTimeout();
  CollectiveTimeout(const CollectiveTimeout&) = delete;
  CollectiveTimeout& operator=(const CollectiveTimeout&) = delete;

  /// Returns the timeout of this thread's innermost scope, else `otherwise`. A
  /// backend passes the timeout of its group.
  static std::chrono::milliseconds in_effect(
      std::chrono::milliseconds otherwise);

 private:
  std::chrono::milliseconds outer_;
};

namespace detail {

/// Timeout longer than any program runs; adding it to a time does not overflow.
constexpr std::chrono::milliseconds kLongestTimeout =
    std::chrono::hours(24 * 365);

/// Wraps `backend` so that its collectives have this timeout, unless a
/// CollectiveTimeout overrides it. Throws ValueError unless `timeout` is
/// positive.
std::shared_ptr<GroupBackend> timed(
    std::shared_ptr<GroupBackend> backend,
    std::chrono::milliseconds timeout);

} // namespace detail
} // namespace dtensor
