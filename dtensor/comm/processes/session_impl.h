// SPDX-License-Identifier: BSD-3-Clause
// Session: the state of this process as a rank.
#pragma once

#include <cstdint>
#include <string>

namespace dtensor::detail {

/// destroy_process_group() for a rank that has failed: publishes the reason and
/// does not wait for other ranks.
void abandon_process_group(const std::string& why);

/// Returns the number of earlier process groups of this process. Stores outlive
/// a process group, so their keys contain this number.
int64_t next_session();

} // namespace dtensor::detail
