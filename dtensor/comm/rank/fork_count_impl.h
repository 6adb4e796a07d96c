// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

namespace dtensor::detail {

/// Returns the number of forks between the process that first called it and
/// this process. A child has none of its parent's threads and connections.
/// Objects that need them compare the count with its value at their
/// construction.
int64_t fork_count();

} // namespace dtensor::detail
