// SPDX-License-Identifier: BSD-3-Clause
// Patterns of names.
#pragma once

#include <string_view>

namespace dtensor::detail {

/// Python's fnmatch.fnmatchcase: *, ?, [seq], [!seq], and nothing else. The
/// work is at most the product of the lengths.
bool matches_glob(std::string_view pattern, std::string_view name);

/// Whether `pattern` may match another name than itself.
inline bool has_wildcards(std::string_view pattern) {
  return pattern.find_first_of("*?[") != std::string_view::npos;
}

} // namespace dtensor::detail
