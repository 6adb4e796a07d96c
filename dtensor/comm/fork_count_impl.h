// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

namespace dtensor::detail {

/// Returns how many forks lie between the process that first called it and this
/// one. What threads and connections a process had, a child has not: objects
/// that need them compare the count with that of their beginning.
int64_t fork_count();

} // namespace dtensor::detail
