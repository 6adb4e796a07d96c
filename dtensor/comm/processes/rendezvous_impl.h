// SPDX-License-Identifier: BSD-3-Clause
// How processes that were started together find each other.
#pragma once

#include <dtensor/comm/init_process_group.h>
#include <dtensor/comm/processes/greeting_impl.h>
#include <dtensor/comm/processes/launch_env_impl.h>
#include <dtensor/comm/processes/open_store_impl.h>

#include <string>
#include <vector>

namespace dtensor::detail {

/// Returns the options with a timeout that can be added to a time. Throws
/// ValueError unless the timeout is positive.
ProcessGroupOptions with_checked_timeout(ProcessGroupOptions options);

/// Who a process is and where its peers meet, of its launcher's variables and
/// of what the program says, which comes first.
LaunchEnv who_am_i(const ProcessGroupOptions& options);

struct Rendezvous {
  /// With keys of this job alone. Null in a world of one, and in a fake one.
  StorePtr store = nullptr;
  std::vector<Peer> peers = {};
  /// Whether the store ends with this process, and the port at which other
  /// hosts reach it, if it is known.
  bool keeps_store = false;
  int store_port = 0;
};

/// Returns when all ranks have come; at once if nobody else is to come, as in a
/// fake world, where nothing is known of the others.
Rendezvous meet(const LaunchEnv& env, const ProcessGroupOptions& options);

} // namespace dtensor::detail
