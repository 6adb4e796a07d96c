// SPDX-License-Identifier: BSD-3-Clause
// Source line of a program's call, from its Python stack trace.
#pragma once

#include <string>

namespace dtensor::detail {

/// Returns the innermost line of a Python stack trace that is not in PyTorch:
/// "model.py:12: x = self.fc(x)". Returns an empty text if there is none.
std::string source_line(const std::string& stack_trace);

/// Returns " at model.py:12: x = self.fc(x)", or an empty text.
std::string describe_source(const std::string& line);

} // namespace dtensor::detail
