// SPDX-License-Identifier: BSD-3-Clause
#include "verdict.h"

#include <dtensor/comm/ranks.h>

#include <chrono>
#include <mutex>
#include <regex>

namespace dtensor::randomized {
namespace {

bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// Returns the "where" of an error of this library, or an empty text.
std::string refusal_of(const std::string& error) {
  static const std::regex failed(
      "\\[run_ranks\\] .* ranks? failed\\. "
      "(?:every rank|ranks? [0-9, ]+): \\[([A-Za-z_][^\\]]*)\\].*");
  static const std::regex another("; ranks? [0-9, ]+: ");
  std::smatch found;
  const bool ours = std::regex_match(error, found, failed) &&
      !std::regex_search(error, another) && !has(error, "INTERNAL ASSERT") &&
      !has(error, "[all_") && !has(error, "[reduce_scatter]");
  return ours ? found[1].str() : "";
}

} // namespace

Verdict Verdict::refused(const std::string& kind, std::string why) {
  return {Outcome::kRefused, std::move(why), {{kind, 1}}};
}

Verdict Verdict::skipped(std::string why) {
  return {Outcome::kSkipped, std::move(why), {}};
}

Verdict Verdict::different(std::string why) {
  return {Outcome::kDifferent, std::move(why), {}};
}

Verdict Verdict::of_difference(std::string why) {
  return why.empty() ? Verdict{} : different(std::move(why));
}

void Tally::add(const Verdict& verdict) {
  switch (verdict.outcome) {
    case Outcome::kEqual:
      ++equal;
      break;
    case Outcome::kRefused:
      ++refused;
      break;
    case Outcome::kSkipped:
      ++skipped;
      break;
    case Outcome::kDifferent:
      ++different;
  }
  for (const auto& [kind, count] : verdict.refusals) {
    refusals[kind] += count;
  }
}

int64_t Tally::valid() const {
  return equal + refused + different;
}

std::string Tally::text() const {
  std::string kinds;
  for (const auto& [kind, count] : refusals) {
    kinds += (kinds.empty() ? "" : ", ") + kind + ": " + std::to_string(count);
  }
  return std::to_string(valid()) + " cases: " + std::to_string(equal) +
      " equal, " + std::to_string(refused) + " refused" +
      (kinds.empty() ? "" : " (" + kinds + ")") + ", " +
      std::to_string(skipped) + " skipped, " + std::to_string(different) +
      " different";
}

std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

Verdict try_on_ranks(
    int64_t ranks,
    const std::function<std::string(int64_t rank)>& compare) {
  std::mutex mutex;
  std::string difference;
  const auto on_rank = [&](int64_t rank) {
    const auto why = compare(rank);
    if (!why.empty()) {
      const std::lock_guard lock(mutex);
      difference = why + " on rank " + std::to_string(rank);
    }
  };
  try {
    run_ranks(ranks, on_rank, {.timeout = std::chrono::seconds(60)});
  } catch (const std::exception& e) {
    const auto line = first_line(e.what());
    const auto where = refusal_of(line);
    return where.empty() ? Verdict::different(line)
                         : Verdict::refused(where, line);
  }
  return Verdict::of_difference(difference);
}

} // namespace dtensor::randomized
