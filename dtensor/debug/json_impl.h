// SPDX-License-Identifier: BSD-3-Clause
// Writing JSON: values are texts that are JSON already.
//
//   json_object({{"name", json_string("w1")}, {"count", json_number(2)}})
//   // {"name": "w1", "count": 2}
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dtensor::detail {

/// Quoted and escaped.
std::string json_string(std::string_view text);
/// To 15 digits.
std::string json_number(double number);
std::string json_number(int64_t number);
/// "true" or "false".
std::string json_bool(bool value);
/// On one line.
std::string json_object(
    const std::vector<std::pair<std::string_view, std::string>>& members);
std::string json_array(const std::vector<std::string>& items);
/// A line for each item.
std::string json_lines(const std::vector<std::string>& items);

} // namespace dtensor::detail
