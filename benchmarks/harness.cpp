// SPDX-License-Identifier: BSD-3-Clause
#include "harness.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iostream>

namespace bench {
namespace {

// Time of a batch: long enough for the clock, and short enough that most
// batches are not interrupted.
constexpr double kBatchSeconds = 100e-6;
constexpr int64_t kLeastBatches = 11;

// Returns the quantile `q` of the values.
double quantile(std::vector<double>& values, double q) {
  const double last = static_cast<double>(values.size() - 1);
  const auto at = values.begin() + std::lround(q * last);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

double us_per_call(const std::function<void()>& call, int64_t calls) {
  const double begin = now();
  for (int64_t i = 0; i < calls; ++i) {
    call();
  }
  return (now() - begin) / static_cast<double>(calls) * 1e6;
}

// Returns the number of calls in a batch, and leaves the caches warm.
int64_t calls_per_batch(const std::function<void()>& call) {
  us_per_call(call, 10);
  const double us = std::max(us_per_call(call, 30), 1e-3);
  const double calls = kBatchSeconds * 1e6 / us;
  return std::clamp<int64_t>(std::lround(calls), 1, 1000);
}

} // namespace

Options parse(
    int argc,
    char** argv,
    const std::string& what,
    const std::vector<Flag>& flags) {
  CLI::App app(what);
  Options options;
  app.add_option(
      "--only", options.only, "Only benchmarks whose name starts with this");
  app.add_option("--seconds", options.seconds, "Seconds per comparison");
  app.add_flag("--smoke", options.smoke, "Run each benchmark once, as a test");
  for (const Flag& flag : flags) {
    app.add_flag(flag.name, *flag.value, flag.help);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return options;
}

double median(std::vector<double> values) {
  return quantile(values, 0.5);
}

double spread(std::vector<double> values, double figure) {
  const double range = quantile(values, 0.75) - quantile(values, 0.25);
  return figure == 0 ? 0 : range / std::abs(figure);
}

void report(const std::string& benchmark, const Fields& fields) {
  nlohmann::ordered_json line;
  line["benchmark"] = benchmark;
  for (const auto& [name, value] : fields) {
    line[name] = std::round(value * 1e4) / 1e4;
  }
  std::cout << line.dump() << std::endl;
}

void Turns::add(double us, double plain_us) {
  us_.push_back(us);
  plain_us_.push_back(plain_us);
  times_.push_back(us / plain_us);
}

void Turns::report(const std::string& benchmark) const {
  const double us = median(us_);
  bench::report(
      benchmark,
      {{"us", us},
       {"plain_us", median(plain_us_)},
       {"times", median(times_)},
       {"spread", spread(us_, us)}});
}

double now() {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(time).count();
}

Comparison compare(
    const std::function<void()>& dtensor,
    const std::function<void()>& plain,
    const Options& options) {
  if (options.smoke) {
    dtensor();
    if (plain) {
      plain();
    }
    return {};
  }
  const int64_t calls = calls_per_batch(dtensor);
  const int64_t plain_calls = plain ? calls_per_batch(plain) : 0;
  std::vector<double> ours, plains, extras;
  const double end = now() + options.seconds;
  for (int64_t i = 0; i < kLeastBatches || now() < end; ++i) {
    plains.push_back(plain ? us_per_call(plain, plain_calls) : 0);
    ours.push_back(us_per_call(dtensor, calls));
    extras.push_back(ours.back() - plains.back());
  }
  const double extra = median(extras);
  return {median(ours), median(plains), extra, spread(extras, extra)};
}

void run_pair(
    const std::string& benchmark,
    const std::function<void()>& dtensor,
    const std::function<void()>& plain,
    const Options& options) {
  if (!options.wants(benchmark)) {
    return;
  }
  const Comparison result = compare(dtensor, plain, options);
  Fields fields = {{"us", result.us}};
  if (plain) {
    fields.emplace_back("plain_us", result.plain_us);
    fields.emplace_back("extra_us", result.extra_us);
  }
  fields.emplace_back("spread", result.spread);
  report(benchmark, fields);
}

} // namespace bench
