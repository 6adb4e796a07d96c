// SPDX-License-Identifier: BSD-3-Clause
// The store for the rendezvous of the ranks of a job of processes: hosted by
// rank 0, by the launcher, or in a file.
#pragma once

#include <dtensor/comm/init_process_group.h>
#include <dtensor/comm/processes/launch_env_impl.h>
#include <dtensor/comm/processes/sockets_impl.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>

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

} // namespace dtensor::detail
