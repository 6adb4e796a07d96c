// SPDX-License-Identifier: BSD-3-Clause
// Busy waiting for other ranks, for backends: a rank spins for a moment before
// it sleeps.
#pragma once

#include <dtensor/api.h>

#include <c10/util/FunctionRef.h>

namespace dtensor {

/// Calls `done` until it returns true, for at most half a millisecond. Returns
/// the last result of `done`. Pass true for `fits` if each rank on this host
/// can have a core of its own; otherwise the rank yields its core to the
/// others.
DTENSOR_API bool spin(bool fits, c10::function_ref<bool()> done);

} // namespace dtensor
