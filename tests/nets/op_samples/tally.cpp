// SPDX-License-Identifier: BSD-3-Clause
#include "tally.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <regex>
#include <stdexcept>

namespace dtensor::nets {
namespace {

bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

} // namespace

Refusal refusal_of(const std::string& error) {
  static const std::regex ours("\\[[A-Za-z_][A-Za-z0-9_:.]*\\] .*");
  if (!std::regex_match(error, ours) || has(error, "INTERNAL ASSERT")) {
    return Refusal::kCount;
  }
  // Error of ranks that met in different collectives.
  for (const auto* comm : {"[all_", "[reduce_", "[broadcast", "[run_ranks"}) {
    if (error.rfind(comm, 0) == 0) {
      return Refusal::kCount;
    }
  }
  return has(error, "draws random numbers") ? Refusal::kRandom
      : has(error, "no sharding rule") || has(error, "no meta kernel")
      ? Refusal::kNoRule
      : has(error, "mixed plain tensor")              ? Refusal::kMixedPlain
      : has(error, "would change the layout of self") ? Refusal::kInPlaceLayout
                                                      : Refusal::kOther;
}

void Tally::Worker::at(const Place& place) {
  mesh = place.mesh;
  call = place.call;
  combination = place.combination;
  ++beats;
}

Place Tally::Worker::place() const {
  return {mesh, call, combination};
}

Tally& Tally::make() {
  void* memory = ::mmap(
      nullptr,
      sizeof(Tally),
      PROT_READ | PROT_WRITE,
      MAP_SHARED | MAP_ANONYMOUS,
      -1,
      0);
  if (memory == MAP_FAILED) {
    throw std::runtime_error("no memory to share with workers");
  }
  return *new (memory) Tally();
}

std::string Tally::text() const {
  static const char* const kinds[] = {
      "no rule", "mixed plain", "in place layout", "random", "other"};
  int64_t all_refused = 0;
  std::string by_kind;
  for (size_t i = 0; i < refused.size(); ++i) {
    all_refused += refused[i];
    by_kind += std::string(i == 0 ? "" : ", ") + kinds[i] + ": " +
        std::to_string(refused[i]);
  }
  const auto n = equal + all_refused + skipped + different + pending;
  return std::to_string(n) + " combinations: " + std::to_string(equal) +
      " equal, " + std::to_string(all_refused) + " refused (" + by_kind +
      "), " + std::to_string(skipped) + " skipped, " +
      (pending > 0 ? std::to_string(pending) + " pending, " : "") +
      std::to_string(different) + " different";
}

void print_line(const std::string& line) {
  const auto whole = line + "\n";
  [[maybe_unused]] const auto written =
      ::write(STDOUT_FILENO, whole.data(), whole.size());
}

} // namespace dtensor::nets
