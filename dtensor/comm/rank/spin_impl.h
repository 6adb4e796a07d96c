// SPDX-License-Identifier: BSD-3-Clause
// Busy waiting of ranks for each other before they sleep.
#pragma once

#include <dtensor/api.h>

#include <c10/util/FunctionRef.h>

namespace dtensor::detail {

/// Spins until `done` holds, for at most half a millisecond. Returns true if it
/// holds. `fits`: each rank can have a core of its own.
DTENSOR_INTERNAL_API bool spin(bool fits, c10::function_ref<bool()> done);

} // namespace dtensor::detail
