// SPDX-License-Identifier: BSD-3-Clause
// Full names, as they appear in plans, errors and tables.
#pragma once

#include <string>

namespace dtensor::detail {

/// Joins a module's name and the name of a member: "w1.weight". The root module
/// has an empty name, so its members are "weight".
inline std::string full_name(
    const std::string& module,
    const std::string& name) {
  return module.empty() ? name : module + "." + name;
}

} // namespace dtensor::detail
