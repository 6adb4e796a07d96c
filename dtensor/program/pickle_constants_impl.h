// SPDX-License-Identifier: BSD-3-Clause
// Constants in a pickle, each read from the offset of its opcode.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace dtensor::detail {

/// Returns the name of a class or function: "torch\nFloatStorage\n". Returns
/// nothing for other constants.
std::optional<std::string_view> pickled_name(
    std::string_view pickle,
    size_t at);
/// Returns a text, or nothing for other constants.
std::optional<std::string_view> pickled_text(
    std::string_view pickle,
    size_t at);
/// Returns an integer, or nothing for other constants and negative integers.
std::optional<uint64_t> pickled_integer(std::string_view pickle, size_t at);

/// True if a pickle of sample inputs may call the function with that name.
bool is_pickled_function(std::string_view name);

/// Returns the bytes of an element of the storage type with that name, or
/// nothing if there is no such type.
std::optional<uint64_t> storage_item_bytes(std::string_view name);

} // namespace dtensor::detail
