// SPDX-License-Identifier: BSD-3-Clause
// Where the ranks of a job of processes meet: the store of rank 0, of the
// launcher, or of a file.
#pragma once

#include <dtensor/comm/init_process_group.h>
#include <dtensor/comm/processes/launch_env_impl.h>
#include <dtensor/comm/processes/sockets_impl.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>

namespace dtensor::detail {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

/// How much later than the deadline an error may come, so that the error of
/// what is called comes first.
inline constexpr auto kGrace = std::chrono::milliseconds(1500);

/// Opens the store that options and variables name, with keys of this attempt
/// and session alone. Throws ValueError where they name none, RuntimeError
/// where it cannot be opened by the deadline.
StorePtr open_store(
    const LaunchEnv& env,
    const ProcessGroupOptions& options,
    Deadline deadline);

/// Returns the port of a TCPStore, within prefixes; 0 for other stores.
int port_of(const c10d::Store& store);
/// Returns whether the store, within prefixes, is a file.
bool is_file(const c10d::Store& store);

/// Returns "the store at oak:29500", for errors.
std::string store_text(
    const LaunchEnv& env,
    const ProcessGroupOptions& options);

} // namespace dtensor::detail
