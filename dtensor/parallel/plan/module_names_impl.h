// SPDX-License-Identifier: BSD-3-Clause
// Full names of modules and parameters, as they appear in plans, errors and
// tables, and patterns that match names.
#pragma once

#include <dtensor/api.h>

#include <string>
#include <string_view>

namespace dtensor::detail {

/// Joins a module's name and the name of a member: "w1.weight". The root module
/// has an empty name, so its members are "weight".
inline std::string full_name(
    const std::string& module,
    const std::string& name) {
  return module.empty() ? name : module + "." + name;
}

/// True if `name` matches `pattern`, with *, ?, [seq] and [!seq] as in Python's
/// fnmatch.fnmatchcase. The time is at most proportional to the product of the
/// lengths.
DTENSOR_INTERNAL_API bool matches_glob(
    std::string_view pattern,
    std::string_view name);

/// True if `pattern` may match a name other than itself.
inline bool has_wildcards(std::string_view pattern) {
  return pattern.find_first_of("*?[") != std::string_view::npos;
}

} // namespace dtensor::detail
