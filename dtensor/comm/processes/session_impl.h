// SPDX-License-Identifier: BSD-3-Clause
// What this process has been as a rank.
#pragma once

#include <cstdint>
#include <string>

namespace dtensor::detail {

/// destroy_process_group() of a rank that has failed: tells the others why, and
/// waits for none of them.
void abandon_process_group(const std::string& why);

/// How often this process has been a rank before: stores outlive a session.
int64_t next_session();

} // namespace dtensor::detail
