// SPDX-License-Identifier: BSD-3-Clause
// Dynamic sizes of an exported program.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace dtensor::detail {

/// One dimension of an input: its size at export, and the symbol if the size is
/// dynamic.
struct InputSize {
  int64_t value = 0;
  std::string symbol = {};
};

/// A symbol's range, both ends included.
struct SymbolRange {
  int64_t least = 0;
  std::optional<int64_t> most;
};

} // namespace dtensor::detail
