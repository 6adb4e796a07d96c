// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <cstdint>

namespace dtensor::detail {

/// Returns the number of forks since the process that called fork_count()
/// first: 0 there, and larger in its descendants. A child has none of its
/// parent's threads and connections. Objects that need threads or connections
/// compare the count with its value at their construction.
int64_t fork_count();

} // namespace dtensor::detail
