// SPDX-License-Identifier: BSD-3-Clause
// Command line parsing for test programs that are not gtest suites.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdlib>

namespace dtensor::test {

/// Parses the command line into `app`'s options. Ends the program after --help.
/// For an invalid command line, prints an explanation and ends the program.
inline void parse_or_exit(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
}

} // namespace dtensor::test
