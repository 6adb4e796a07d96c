// SPDX-License-Identifier: BSD-3-Clause
// JSON output. Values are passed as JSON text.
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

/// Returns `text` quoted and escaped.
std::string json_string(std::string_view text);
/// Returns a number with up to 15 digits.
std::string json_number(double number);
std::string json_number(int64_t number);
/// Returns "true" or "false".
std::string json_bool(bool value);
/// Return an object or an array on one line.
std::string json_object(
    const std::vector<std::pair<std::string_view, std::string>>& members);
std::string json_array(const std::vector<std::string>& items);
/// Returns an array with a line per item.
std::string json_lines(const std::vector<std::string>& items);

} // namespace dtensor::detail
