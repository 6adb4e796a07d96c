// SPDX-License-Identifier: BSD-3-Clause
// Rendezvous of the processes of one job.
#pragma once

#include <dtensor/comm/init_process_group.h>
#include <dtensor/comm/processes/greeting_impl.h>
#include <dtensor/comm/processes/launch_env_impl.h>
#include <dtensor/comm/processes/open_store_impl.h>

#include <string>
#include <vector>

namespace dtensor::detail {

/// Returns the options with a timeout that can be added to a time point without
/// overflow. Throws ValueError unless the timeout is positive.
ProcessGroupOptions with_checked_timeout(ProcessGroupOptions options);

/// Determines the rank, world size and rendezvous address of this process from
/// the launcher's variables and the program's options. Options take precedence.
LaunchEnv read_rank_identity(const ProcessGroupOptions& options);

struct Rendezvous {
  /// Store with keys of this job only. Null in a world of one rank and in a
  /// fake world.
  StorePtr store = nullptr;
  std::vector<Peer> peers = {};
  /// True if the store ends with this process. `store_port` is the port at
  /// which other hosts reach the store, or 0 if unknown.
  bool keeps_store = false;
  int store_port = 0;
};

/// Returns when all ranks have arrived. Returns at once in a world of one rank
/// and in a fake world; a fake world has no information about the other ranks.
Rendezvous meet(const LaunchEnv& env, const ProcessGroupOptions& options);

} // namespace dtensor::detail
