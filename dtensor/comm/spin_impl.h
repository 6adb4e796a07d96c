// SPDX-License-Identifier: BSD-3-Clause
// How ranks wait for each other before they fall asleep.
#pragma once

#include <c10/util/FunctionRef.h>

namespace dtensor::detail {

/// Waits awake until `done` holds, half a millisecond at most; returns whether
/// it does. `fits`: whether each rank can have a core.
bool spin(bool fits, c10::function_ref<bool()> done);

} // namespace dtensor::detail
