// SPDX-License-Identifier: BSD-3-Clause
// What every benchmark program shares: its options, statistics, and how it
// reports. A result is one line of JSON on stdout:
//
//   {"benchmark":"warm/add/no_grad/8","us":0.91,"plain_us":0.62, ...}
//
// Timings of two things that are compared are taken alternately, so that
// whatever else the machine does hits both.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace bench {

/// --only PREFIX, --smoke (each benchmark runs once, to see that it runs),
/// --seconds (for one comparison).
struct Options {
  std::string only;
  bool smoke = false;
  double seconds = 0.1;

  /// Whether the benchmark was asked for.
  bool wants(std::string_view benchmark) const {
    return benchmark.starts_with(only);
  }
};

/// A switch that one program has.
struct Flag {
  std::string name;
  std::string help;
  bool* value;
};

/// Reads the command line; ends the program on --help or a wrong one.
Options parse(
    int argc,
    char** argv,
    const std::string& what,
    const std::vector<Flag>& flags = {});

double median(std::vector<double> values);
/// The range of the middle half of `values` in relation to `figure`.
double spread(std::vector<double> values, double figure);

using Fields = std::vector<std::pair<std::string, double>>;
/// Prints one result.
void report(const std::string& benchmark, const Fields& fields);

/// Microseconds per call of ours and of what it is compared with, taken in
/// turn.
class Turns {
 public:
  void add(double us, double plain_us);
  /// Medians: us, plain_us, and times, which is ours in relation to the other
  /// in the same moment.
  void report(const std::string& benchmark) const;

 private:
  std::vector<double> us_;
  std::vector<double> plain_us_;
  std::vector<double> times_;
};

/// Seconds since some fixed time.
double now();

/// Microseconds per call of two functions that do the same work.
struct Comparison {
  double us = 0;
  double plain_us = 0;
  /// What a DTensor call takes longer than its plain neighbour in time, and the
  /// spread of that.
  double extra_us = 0;
  double spread = 0;
};

/// Times batches of `dtensor` and `plain` in turn. Without `plain` all of
/// `dtensor` is extra.
Comparison compare(
    const std::function<void()>& dtensor,
    const std::function<void()>& plain,
    const Options& options);

/// compare(), reported.
void run_pair(
    const std::string& benchmark,
    const std::function<void()>& dtensor,
    const std::function<void()>& plain,
    const Options& options);

} // namespace bench
