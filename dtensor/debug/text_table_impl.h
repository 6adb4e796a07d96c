// SPDX-License-Identifier: BSD-3-Clause
// A table as text: columns two blanks apart, words to the left and numbers to
// the right.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace dtensor::detail {

using TextRow = std::vector<std::string>;

/// `rows` are equally long; columns from `first_number` on are numbers.
std::string aligned(const std::vector<TextRow>& rows, size_t first_number);

} // namespace dtensor::detail
