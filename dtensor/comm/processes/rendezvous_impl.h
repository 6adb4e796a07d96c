// SPDX-License-Identifier: BSD-3-Clause
// How processes that were started together find each other.
#pragma once

#include <dtensor/comm/init_process_group.h>
#include <dtensor/comm/processes/launch_env_impl.h>
#include <dtensor/comm/processes/process_id_impl.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>
#include <vector>

namespace dtensor::detail {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

/// Who a process is and where its peers meet, of its launcher's variables and
/// of what the program says, which comes first.
LaunchEnv who_am_i(const ProcessGroupOptions& options);

/// What ranks tell each other when they meet.
struct Peer {
  /// Where it runs: its name, and a text that is equal for two processes that
  /// can share memory and reach each other's loopback interface.
  std::string host_name;
  std::string host;
  ProcessId process;
};

struct Rendezvous {
  /// With keys of this job alone. Null in a world of one, and in a fake one.
  StorePtr store;
  std::vector<Peer> peers;
};

/// Returns when all ranks have come; at once if nobody else is to come, as in a
/// fake world, where nothing is known of the others.
Rendezvous meet(const LaunchEnv& env, const ProcessGroupOptions& options);

} // namespace dtensor::detail
