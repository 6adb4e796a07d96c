// SPDX-License-Identifier: BSD-3-Clause
#include "tally.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <regex>
#include <stdexcept>

namespace dtensor::randomized {
namespace {

constexpr std::array kKinds =
    {"no rule", "mixed plain", "in place layout", "random", "other"};

bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

} // namespace

std::string refusal_of(const std::string& error) {
  static const std::regex ours("\\[[A-Za-z_][A-Za-z0-9_:.]*\\] .*");
  if (!std::regex_match(error, ours) || has(error, "INTERNAL ASSERT") ||
      has(error, "please report this") ||
      has(error, "the local tensor has shape")) {
    return ""; // local results do not have the shapes of the rule's layout
  }
  // Error of ranks that have entered different collectives.
  for (const auto* comm : {"[all_", "[reduce_", "[broadcast", "[run_ranks"}) {
    if (error.rfind(comm, 0) == 0) {
      return "";
    }
  }
  return has(error, "draws random numbers") ? "random"
      : has(error, "no sharding rule") || has(error, "no meta kernel")
      ? "no rule"
      : has(error, "mixed plain tensor")              ? "mixed plain"
      : has(error, "would change the layout of self") ? "in place layout"
                                                      : "other";
}

void SharedTally::Worker::at(const Place& place) {
  mesh = place.mesh;
  call = place.call;
  combination = place.combination;
  ++beats;
}

Place SharedTally::Worker::place() const {
  return {mesh, call, combination};
}

SharedTally& SharedTally::make() {
  void* memory = ::mmap(
      nullptr,
      sizeof(SharedTally),
      PROT_READ | PROT_WRITE,
      MAP_SHARED | MAP_ANONYMOUS,
      -1,
      0);
  if (memory == MAP_FAILED) {
    throw std::runtime_error("no memory to share with workers");
  }
  return *new (memory) SharedTally();
}

void SharedTally::add(const Verdict& verdict) {
  equal += verdict.outcome == Outcome::kEqual ? 1 : 0;
  skipped += verdict.outcome == Outcome::kSkipped ? 1 : 0;
  different += verdict.outcome == Outcome::kDifferent ? 1 : 0;
  for (size_t i = 0; i < kKinds.size(); ++i) {
    refused.at(i) += static_cast<int64_t>(verdict.refusals.count(kKinds.at(i)));
  }
}

Tally SharedTally::counts() const {
  Tally all;
  all.equal = equal;
  all.skipped = skipped;
  all.different = different;
  for (size_t i = 0; i < kKinds.size(); ++i) {
    if (refused.at(i) > 0) {
      all.refused += refused.at(i);
      all.refusals[kKinds.at(i)] = refused.at(i);
    }
  }
  return all;
}

void print_line(const std::string& line) {
  const auto whole = line + "\n";
  [[maybe_unused]] const auto written =
      ::write(STDOUT_FILENO, whole.data(), whole.size());
}

} // namespace dtensor::randomized
