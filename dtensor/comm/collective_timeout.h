// SPDX-License-Identifier: BSD-3-Clause
// How long a rank waits for the others, where it is not as long as its world
// says (RunRanksOptions::timeout, ProcessGroupOptions::timeout):
//
//   auto slow = new_group(ranks, "checkpoint", {.timeout =
//   std::chrono::hours(1)});
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

/// While it lives, the collectives that this thread enters, and asynchronous
/// ones that it waits for, wait at most so long, in place of the group's
/// timeout. The innermost counts. Over c10d an asynchronous collective has the
/// timeout of where it was entered, and messages have the group's.
/// Throws ValueError unless it is positive.
/// Python: the argument `timeout` of torch.distributed.monitored_barrier and
/// Work.wait.
class DTENSOR_API CollectiveTimeout {
 public:
  explicit CollectiveTimeout(std::chrono::milliseconds timeout);
  ~CollectiveTimeout();
  CollectiveTimeout(const CollectiveTimeout&) = delete;
  CollectiveTimeout& operator=(const CollectiveTimeout&) = delete;

 private:
  std::chrono::milliseconds outer_;
};

namespace detail {

/// Longer than any program runs, and short enough to be added to a time.
constexpr std::chrono::milliseconds kLongestTimeout =
    std::chrono::hours(24 * 365);

/// What a CollectiveTimeout says here, else `otherwise`.
std::chrono::milliseconds timeout_or(std::chrono::milliseconds otherwise);

/// `backend`, but that its collectives wait so long, unless a CollectiveTimeout
/// says otherwise. Throws ValueError unless it is positive.
std::shared_ptr<GroupBackend> timed(
    std::shared_ptr<GroupBackend> backend,
    std::chrono::milliseconds timeout);

} // namespace detail
} // namespace dtensor
