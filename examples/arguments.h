// SPDX-License-Identifier: BSD-3-Clause
// Positional arguments of examples that take numbers: "long_context 8192 4".
#pragma once

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>

namespace arguments {

/// Prints "usage: <program> <what>" and ends the program, with 0 for --help and
/// with 2 for a wrong argument.
[[noreturn]] inline void
end_with_usage(char** argv, const std::string& what, bool is_error) {
  (is_error ? std::cerr : std::cout)
      << "usage: " << argv[0] << " " << what << "\n";
  std::exit(is_error ? 2 : 0);
}

/// Ends the program for --help, and for more than `most` arguments.
inline void check(int argc, char** argv, int most, const std::string& what) {
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    if (text == "--help" || text == "-h") {
      end_with_usage(argv, what, /*is_error=*/false);
    }
    if (i > most || text.starts_with("-")) {
      std::cerr << argv[0] << ": unknown argument " << text << "\n";
      end_with_usage(argv, what, /*is_error=*/true);
    }
  }
}

/// Returns the argument at `place`, an integer above 0, or `otherwise` if there
/// is none.
inline int64_t positive(
    int argc,
    char** argv,
    int place,
    int64_t otherwise,
    const std::string& what) {
  if (argc <= place) {
    return otherwise;
  }
  const std::string text = argv[place];
  const bool is_number = !text.empty() && text.size() < 16 &&
      text.find_first_not_of("0123456789") == std::string::npos;
  const int64_t number = is_number ? std::atoll(text.c_str()) : 0;
  if (number < 1) {
    std::cerr << argv[0] << ": expected a positive number, got " << text
              << "\n";
    end_with_usage(argv, what, /*is_error=*/true);
  }
  return number;
}

/// Ends the program with 2 if a launcher has started several processes of it,
/// because the ranks of `program` are threads of one process.
inline void refuse_launcher(const std::string& program) {
  const char* world = std::getenv("WORLD_SIZE");
  if (world != nullptr && std::atoll(world) > 1) {
    std::cerr << program
              << ": its ranks are threads of one process, but a launcher "
                 "started "
              << world
              << " processes. Start it without the launcher, with --ranks "
              << world << ".\n";
    std::exit(2);
  }
}

} // namespace arguments
