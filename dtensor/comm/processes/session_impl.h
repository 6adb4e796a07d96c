// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <exception>

namespace dtensor::detail {

/// destroy_process_group() of a rank that has failed: tells the others why, and
/// waits for none of them.
void abandon_process_group(const std::exception& error);

} // namespace dtensor::detail
