// SPDX-License-Identifier: BSD-3-Clause
// Harness of the randomized tests: command line, loop over cases, tally, and a
// report of crashes and hangs. A test draws a case from a seed:
//
//   Harness harness("units", "Random models against plain models", 60);
//   harness.app().add_flag("--no-shrink", ...); // options of this test
//   harness.parse(argc, argv);
//   harness.run([](uint64_t seed) {
//     const auto plan = draw_plan(seed);
//     return Case{plan.text(), [=] { return try_plan(plan); }};
//   });
//   return harness.report();
//
// A case depends on its seed and on the options of the test only. After a
// difference, a crash or a hang, the harness prints the command that repeats
// the case.
#pragma once

#include <tests/command_line.h>

#include <cstdint>
#include <functional>
#include <string>

#include "verdict.h"

namespace dtensor::randomized {

struct Case {
  std::string text;
  std::function<Verdict()> run;
  /// Returns the text of a smaller case that also differs, and its difference.
  std::function<std::string()> shrink = nullptr;
};

class Harness {
 public:
  /// `cases` is the default number of cases.
  Harness(std::string name, const std::string& about, int64_t cases);

  CLI::App& app() {
    return app_;
  }
  /// Parses the command line. Ends the program if it is invalid.
  void parse(int argc, char** argv);

  uint64_t seed() const {
    return seed_;
  }
  int64_t cases() const {
    return cases_;
  }
  bool verbose() const {
    return verbose_;
  }
  Tally& tally() {
    return tally_;
  }

  /// Draws and runs cases from the first seed on, until the number of valid
  /// cases or the time is reached. From then on, crashes are reported.
  void run(const std::function<Case(uint64_t seed)>& draw);
  /// Counts a difference that belongs to no single case.
  void fail(const std::string& why);

  /// Prints the tally. Returns the exit code: 0 if some cases were equal and
  /// none was different.
  int report() const;

 private:
  Verdict run_one(
      const std::function<Case(uint64_t seed)>& draw,
      uint64_t seed);
  std::string command_of(uint64_t seed) const;

  std::string name_;
  CLI::App app_;
  std::string command_; // without the seed and the number of cases
  uint64_t seed_ = 1;
  int64_t cases_;
  double seconds_ = 0;
  bool verbose_ = false;
  Tally tally_;
};

} // namespace dtensor::randomized
