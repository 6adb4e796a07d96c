// SPDX-License-Identifier: BSD-3-Clause
// Internal functions about the rank of a thread.
#pragma once

#include <dtensor/comm/rank/rank_local_impl.h>
#include <dtensor/comm/world.h>

namespace dtensor::detail {

/// Returns the world of a program without ranks, whose only rank is 0. This
/// world never ends.
World& process_world();

/// Returns true if this thread is a rank. Running a backward node of a rank
/// does not make a thread a rank.
inline bool is_rank() {
  return this_thread.state != nullptr;
}

/// Returns true if this thread is a rank and its world has other ranks in this
/// process.
inline bool has_peers_in_process() {
  return is_rank() && this_thread.world->shared() != this_thread.world;
}

/// Returns the rank that this thread works for without being a rank. Inside a
/// backward node, this is the rank whose thread made the node. Elsewhere, it is
/// the process's rank from init_process_group. Null if the thread is a rank, or
/// if there is no such rank.
std::shared_ptr<World> world_worked_for();

} // namespace dtensor::detail
