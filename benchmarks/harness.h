// SPDX-License-Identifier: BSD-3-Clause
// Options, statistics and reports of the benchmark programs. A result is one
// line of JSON on stdout:
//
//   {"benchmark":"warm/add/no_grad/8","us":0.91,"plain_us":0.62, ...}
//
// Timings that are compared are taken alternately, so that other load on the
// machine affects both.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace bench {

/// Command line options: --only PREFIX, --smoke (runs each benchmark once, as a
/// test), --seconds (time per comparison).
struct Options {
  std::string only;
  bool smoke = false;
  double seconds = 0.1;

  /// Returns true if the benchmark is selected.
  bool wants(std::string_view benchmark) const {
    return benchmark.starts_with(only);
  }
};

/// An additional switch of one program.
struct Flag {
  std::string name;
  std::string help;
  bool* value;
};

/// Parses the command line. Ends the program after --help or an error.
Options parse(
    int argc,
    char** argv,
    const std::string& what,
    const std::vector<Flag>& flags = {});

double median(std::vector<double> values);
/// Returns the range of the middle half of `values`, relative to `figure`.
double spread(std::vector<double> values, double figure);

using Fields = std::vector<std::pair<std::string, double>>;
/// Prints a result.
void report(const std::string& benchmark, const Fields& fields);

/// Microseconds per call of dtensor's version and the plain version, taken
/// alternately.
class Turns {
 public:
  void add(double us, double plain_us);
  /// Reports medians: us, plain_us, and times, the ratio of each sample to the
  /// plain sample taken next to it.
  void report(const std::string& benchmark) const;

 private:
  std::vector<double> us_;
  std::vector<double> plain_us_;
  std::vector<double> times_;
};

/// Returns seconds since a fixed point in time.
double now();

/// Microseconds per call of two functions that do the same work.
struct Comparison {
  double us = 0;
  double plain_us = 0;
  /// Extra time of a DTensor call over the plain call next to it in time, and
  /// its spread.
  double extra_us = 0;
  double spread = 0;
};

/// Times batches of `dtensor` and `plain` alternately. Without `plain`, the
/// full time of `dtensor` counts as extra.
Comparison compare(
    const std::function<void()>& dtensor,
    const std::function<void()>& plain,
    const Options& options);

/// Runs compare() and reports the result.
void run_pair(
    const std::string& benchmark,
    const std::function<void()>& dtensor,
    const std::function<void()>& plain,
    const Options& options);

} // namespace bench
