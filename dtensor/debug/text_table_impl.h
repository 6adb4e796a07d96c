// SPDX-License-Identifier: BSD-3-Clause
// Text tables: columns separated by two spaces, words aligned left, numbers
// aligned right.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace dtensor::detail {

using TextRow = std::vector<std::string>;

/// Formats `rows`, which must have equal lengths. Columns from `first_number`
/// on are numbers.
std::string aligned(const std::vector<TextRow>& rows, size_t first_number);

} // namespace dtensor::detail
