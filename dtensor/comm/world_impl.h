// SPDX-License-Identifier: BSD-3-Clause
// Which rank a thread is.
#pragma once

#include <dtensor/comm/rank_local_impl.h>
#include <dtensor/comm/world.h>

#include <functional>

namespace dtensor::detail {

/// A program without ranks: rank 0 of a world of one. Never ends.
World& process_world();

/// Whether this thread is a rank; a node that it runs for one does not make it
/// one.
inline bool is_rank() {
  return this_thread.state != nullptr;
}

/// Whether this thread is a rank beside others of this process.
inline bool has_peers_in_process() {
  return is_rank() && this_thread.world->shared() != this_thread.world;
}

/// The rank that this thread works for without being one: that whose thread
/// made the backward node that it is in, else the process's by
/// init_process_group; null if it is a rank, and if there is none.
std::shared_ptr<World> world_worked_for();

/// What threads that are no ranks work for from now on; null: for none. Lives
/// at least until the next call.
void set_default_world(World* world);

/// What becomes of the backend of each group that this rank makes, if set: for
/// programs that watch what groups do (benchmarks/profile.cpp).
using BackendWrapper = std::function<GroupBackendPtr(GroupBackendPtr)>;
extern RankLocal<BackendWrapper> backend_wrapper;

} // namespace dtensor::detail
