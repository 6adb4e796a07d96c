// SPDX-License-Identifier: BSD-3-Clause
// Name patterns.
#pragma once

#include <string_view>

namespace dtensor::detail {

/// True if `name` matches: Python's fnmatch.fnmatchcase, with *, ?, [seq] and
/// [!seq]. The time is at most proportional to the product of the lengths.
bool matches_glob(std::string_view pattern, std::string_view name);

/// True if `pattern` may match a name other than itself.
inline bool has_wildcards(std::string_view pattern) {
  return pattern.find_first_of("*?[") != std::string_view::npos;
}

} // namespace dtensor::detail
