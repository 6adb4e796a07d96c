// SPDX-License-Identifier: BSD-3-Clause
// Busy waiting of ranks for each other before they sleep, for backends.
#pragma once

#include <dtensor/api.h>

#include <c10/util/FunctionRef.h>

namespace dtensor {

/// Calls `done` until it returns true, for at most half a millisecond. Returns
/// its last result. `fits`: each rank on this host can have a core of its own;
/// ranks that share cores yield them to each other.
DTENSOR_API bool spin(bool fits, c10::function_ref<bool()> done);

} // namespace dtensor
