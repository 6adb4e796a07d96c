// SPDX-License-Identifier: BSD-3-Clause
// dtensor_faults: in each run, one rank fails at a random point of a training
// step. run_ranks must name the rank, no rank may wait until the timeout, and
// no thread, spec or memory may leak.
//
//   dtensor_faults --seed 1 --cases 300       what ctest runs
//   dtensor_faults --seed 2 --cases 500 --verbose
#include <c10/util/StringUtil.h>
#include <dtensor/layout/spec.h>
#include <tests/randomized/harness/harness.h>
#include <tests/randomized/harness/random.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "fault.h"

namespace dtensor::faults {
namespace {

int64_t threads() {
  int64_t count = 0;
  for ([[maybe_unused]] const auto& task :
       std::filesystem::directory_iterator("/proc/self/task")) {
    ++count;
  }
  return count;
}

// Returns the resident memory of the process in KB.
int64_t resident() {
  std::ifstream status("/proc/self/status");
  std::string word;
  int64_t size = 0;
  while (status >> word) {
    if (word == "VmRSS:") {
      status >> size;
    }
  }
  return size;
}

Fault draw_fault(uint64_t seed) {
  static std::map<int64_t, Points> points = {
      {2, count_points(2)}, {3, count_points(3)}};
  randomized::Random random(seed);
  Fault fault;
  fault.ranks = 2 + random.below(2);
  fault.rank = random.below(fault.ranks);
  fault.kind = static_cast<Kind>(random.below(kKinds));
  // Points after the last collective are excluded, because no other rank waits
  // for a rank there.
  fault.point = random.below(points[fault.ranks].last_collective + 1);
  return fault;
}

randomized::Verdict try_fault(const Fault& fault, const Objects& ended) {
  const auto specs = static_cast<int64_t>(live_specs());
  const int64_t threads_before = threads();
  const std::string error = run_with(fault, ended);
  if (!names(error, fault) || waited(error)) {
    return randomized::Verdict::different(error.empty() ? "no error" : error);
  }
  const auto new_specs = static_cast<int64_t>(live_specs()) - specs;
  const auto new_threads = threads() - threads_before;
  return randomized::Verdict::of_difference(
      new_specs == 0 && new_threads == 0
          ? ""
          : c10::str(
                "left ", new_specs, " specs and ", new_threads, " threads"));
}

int run(int argc, char** argv) {
  randomized::Harness harness(
      "faults", "Training steps with a fault at a random point", 300);
  harness.parse(argc, argv);
  const Objects ended = of_ended_ranks();
  draw_fault(0); // counts the points
  // The first half of the cases fills the caches. After it, a leak of 2 KB per
  // case would matter in a long program.
  const int64_t half = harness.cases() / 2;
  const int64_t measured = harness.cases() - half;
  int64_t begun = 0;
  int64_t memory = 0;
  harness.run([&](uint64_t seed) {
    memory = begun++ == half ? resident() : memory;
    const auto fault = draw_fault(seed);
    return randomized::Case{
        fault.text(), [&, fault] { return try_fault(fault, ended); }};
  });
  const int64_t grown = resident() - memory;
  if (grown > 2048 + 2 * measured) {
    harness.fail(c10::str(measured, " cases left ", grown, " KB"));
  }
  return harness.report();
}

} // namespace
} // namespace dtensor::faults

int main(int argc, char** argv) {
  return dtensor::faults::run(argc, argv);
}
