// SPDX-License-Identifier: BSD-3-Clause
// Full names, as plans, errors and tables print them.
#pragma once

#include <string>

namespace dtensor::detail {

/// What is called `name` in the module called `module`: "w1.weight"; "weight"
/// in the model itself, whose name is empty.
inline std::string full_name(
    const std::string& module,
    const std::string& name) {
  return module.empty() ? name : module + "." + name;
}

} // namespace dtensor::detail
