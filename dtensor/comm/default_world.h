// SPDX-License-Identifier: BSD-3-Clause
// The world for threads of a process that are not ranks, such as threads that
// save checkpoints or load data.
#pragma once

#include <dtensor/api.h>

namespace dtensor {

class World;

/// Sets the world that threads of this process work for if they are not ranks;
/// null for none. For a World subclass whose process is one rank:
/// init_process_group() and destroy_process_group() do this for their world.
/// `world` must live until the next call.
DTENSOR_API void set_default_world(World* world);

} // namespace dtensor
