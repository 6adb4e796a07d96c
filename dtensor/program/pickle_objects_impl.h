// SPDX-License-Identifier: BSD-3-Clause
// Objects of a pickle, with the properties that a safe reader needs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace dtensor::detail {

/// Index in the list of a pickle's objects.
using PickleNode = uint32_t;
constexpr PickleNode kLeaf = 0; // of all constants
constexpr PickleNode kMark = UINT32_MAX;

/// An object on the stack or in another object.
struct PickledItem {
  PickleNode node = kLeaf;
  size_t at = 0; // offset of a constant's opcode
};

enum class PickledKind : uint8_t { kConstant, kTuple, kList, kDict, kOther };

struct PickledObject {
  PickledKind kind = PickledKind::kConstant;
  std::vector<PickledItem> held = {};
};

/// Exception whose text is the problem.
class PickleProblem final : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void refuse_pickle(const std::string& why) {
  throw PickleProblem(why);
}

/// Throws PickleProblem for objects that nest too deep or form a cycle. Also
/// throws if objects share others so often that a reader, which visits them
/// each time, would visit many more objects than the pickle has bytes.
void check_reach(const std::vector<PickledObject>& nodes, size_t bytes);

// Constants are read from the offset of their opcode.

/// Returns the name of a class or function: "torch\nFloatStorage\n". Returns
/// nothing for other constants.
std::optional<std::string_view> pickled_name(
    std::string_view pickle,
    size_t at);
/// Returns a text; nothing for other constants.
std::optional<std::string_view> pickled_text(
    std::string_view pickle,
    size_t at);
/// Returns an integer; nothing for other constants and negative integers.
std::optional<uint64_t> pickled_integer(std::string_view pickle, size_t at);

/// True if a pickle of sample inputs may call the function with that name.
bool is_pickled_function(std::string_view name);

/// Returns the bytes of an element of the storage type with that name; nothing
/// for an unknown type.
std::optional<uint64_t> storage_item_bytes(std::string_view name);

} // namespace dtensor::detail
