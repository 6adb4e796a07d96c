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

/// The rank whose thread made the backward node that this thread is in, if it
/// is no rank itself; else null.
std::shared_ptr<World> world_of_node();

/// What becomes of the backend of each group that this rank makes, if set: for
/// programs that watch what groups do (benchmarks/profile.cpp).
using BackendWrapper = std::function<GroupBackendPtr(GroupBackendPtr)>;
extern RankLocal<BackendWrapper> backend_wrapper;

} // namespace dtensor::detail
