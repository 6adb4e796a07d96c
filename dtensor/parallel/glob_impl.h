// SPDX-License-Identifier: BSD-3-Clause
// Patterns of names.
#pragma once

#include <string_view>

namespace dtensor::detail {

/// Python's fnmatch.fnmatchcase: *, ?, [seq], [!seq], and nothing else.
bool matches_glob(std::string_view pattern, std::string_view name);

} // namespace dtensor::detail
