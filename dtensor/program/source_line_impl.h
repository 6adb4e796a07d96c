// SPDX-License-Identifier: BSD-3-Clause
// Where in its Python source a call of a program comes from.
#pragma once

#include <string>

namespace dtensor::detail {

/// Of a stack trace as Python prints it, the innermost line that is not
/// PyTorch's: "model.py:12: x = self.fc(x)"; empty if there is none.
std::string source_line(const std::string& stack_trace);

/// " at model.py:12: x = self.fc(x)", or nothing.
std::string describe_source(const std::string& line);

} // namespace dtensor::detail
