// SPDX-License-Identifier: BSD-3-Clause
// Text of reports: operator calls, tables, JSON, and output to files.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <dtensor/comm/processes/write_signals_impl.h>
#include <dtensor/error.h>
#include <nlohmann/json_fwd.hpp>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace dtensor::detail {

struct OperatorText {
  std::string name;                  // "aten::add.Tensor"
  std::vector<std::string> operands; // "f32[8, 6] S(0)", "f32[8, 6]"
  std::string mesh;                  // "(tp=2)"; "" without DTensors
};

/// Describes a call in a callback that receives inputs. The operands are
/// tensors; a list is shown as its first tensor and its length.
OperatorText text_of(const at::RecordFunction& call);

/// Returns "f32[8, 6]"; for a DTensor, the global shape.
std::string shape_text(const at::Tensor& tensor);

// Text tables: columns separated by two spaces, words aligned left, numbers
// aligned right.

using TextRow = std::vector<std::string>;

/// Formats `rows`, which must have equal lengths. Columns from `first_number`
/// on are numbers.
std::string aligned(const std::vector<TextRow>& rows, size_t first_number);

/// JSON, with the members of an object in the order of their insertion.
using ReportJson = nlohmann::ordered_json;

/// Returns an array with a line per item. Replaces bytes that are not UTF-8.
std::string json_lines(const std::vector<ReportJson>& items);

/// Writes `text` to a file. Throws RuntimeError that begins with `where` on
/// failure.
inline void write_file(
    const char* where,
    const std::string& file_name,
    const std::string& text) {
  const IgnoreWriteSignals no_signals; // of `ulimit -f`
  errno = 0;
  std::ofstream file(file_name);
  file << text;
  file.close();
  DTENSOR_CHECK(
      !file.fail(),
      "[{}] cannot write \"{}\": {}. Pass the name of a file in a folder that "
      "exists.",
      where,
      file_name,
      std::strerror(errno));
}

} // namespace dtensor::detail
