// SPDX-License-Identifier: BSD-3-Clause
// The command lines of test programs that are no gtest suites.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdlib>

namespace dtensor::test {

/// Sets what `app`'s options name. Ends the program after --help, and after a
/// command line that does not fit, which it explains.
inline void parse_or_exit(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
}

} // namespace dtensor::test
