// SPDX-License-Identifier: BSD-3-Clause
// What becomes of memory that ranks free.
#pragma once

namespace dtensor::detail {

/// Lets the allocator keep what threads free for what they allocate next.
/// glibc's default gives the large blocks of a thread back to the system and
/// takes them anew, a page fault for each 4 KB: a tenth of the time of a small
/// training step. Done once per process, and not where the user has tuned
/// malloc by its own environment variables (MALLOC_TRIM_THRESHOLD_ and such).
void keep_freed_memory();

} // namespace dtensor::detail
