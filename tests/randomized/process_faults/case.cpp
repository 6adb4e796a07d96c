// SPDX-License-Identifier: BSD-3-Clause
#include "case.h"

#include <c10/util/StringUtil.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <random>
#include <regex>

namespace dtensor::process_faults {
namespace {

using namespace std::chrono_literals;

constexpr std::array<const char*, kKinds> kNames = {
    "throws",
    "exits",
    "is killed",
    "crashes",
    "hangs",
    "comes late",
    "calls another collective"};

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// True if the text names the rank, as "rank 1 (process 4711 on oak)" or "rank 1
// (process 4711)".
bool names_rank(const std::string& text, int64_t rank) {
  const std::string name = c10::str("rank ", rank, " (process ");
  for (size_t at = text.find(name); at != std::string::npos;
       at = text.find(name, at + 1)) {
    const size_t end = text.find(')', at);
    if (has(text.substr(at, end - at + 1), " on " + host_name() + ")")) {
      return true;
    }
  }
  return false;
}

// Ranks of one process end together, so any of them may be named.
bool names_culprit(
    const std::string& text,
    const World& world,
    const Case& fault) {
  const int64_t first = fault.culprit / world.threads * world.threads;
  for (int64_t thread = 0; thread < world.threads; ++thread) {
    if (names_rank(text, first + thread)) {
      return true;
    }
  }
  return false;
}

// True for "rank 2 of 3 did not join" or "ranks 2, 3 of 4 did not join".
bool says_absent(const std::string& text, int64_t rank) {
  const std::regex said(c10::str(
      "ranks? ([0-9]+, )*", rank, "(, [0-9]+)* of [0-9]+ did not join within"));
  return std::regex_search(text, said);
}

// Returns the missing text of the error about an absent rank. If rank 0 is
// late, the other ranks do not find the store, or have given up when rank 0
// arrives. If another rank is late, rank 0 may be the first to give up, and its
// store ends with it. Without a launcher's address, rank 0 itself counts the
// ranks.
std::string missing_of_absent(
    const std::string& output,
    const World& world,
    const Case& fault) {
  const auto says = [&](const std::string& what) {
    return has(output, "[init_process_group] " + what);
  };
  const bool store_is_late = fault.culprit < world.threads;
  const bool is_told = says_absent(output, fault.culprit) ||
      says("the store at ") || has(output, "ranks of this host did not join") ||
      (store_is_late &&
       (says("rank 0 was not found on this host in time") ||
        has(output, " did not join within")));
  return is_told ? "" : "that the rank did not join";
}

// Under mpirun, the first process that ends also ends all other processes, so
// fewer errors are required.
std::string missing_under_mpirun(
    const std::string& output,
    const World& world,
    const Case& fault) {
  const bool says = fault.kind == Kind::kThrows || fault.is_waited_for();
  return !says || names_culprit(output, world, fault) ? "" : "the rank";
}

} // namespace

bool Case::is_waited_for() const {
  return kind == Kind::kHangs || kind == Kind::kComesLate;
}

std::chrono::milliseconds Case::timeout() const {
  return is_waited_for() || kind == Kind::kCallsOther ? 2s : 60s;
}

std::chrono::milliseconds Case::patience() const {
  return 10s + (timeout() < 10s ? timeout() : 0s);
}

std::string Case::text() const {
  return c10::str(
      "rank ",
      culprit,
      " ",
      kNames.at(static_cast<size_t>(kind)),
      is_absent() ? " at the beginning"
                  : c10::str(" at place ", place, ", point ", point),
      compares ? ", compared" : "");
}

Case make_case(const World& world, int64_t run, int64_t points) {
  constexpr int64_t kAll = kKinds * kPlaces;
  std::mt19937_64 random(1'000'003 + static_cast<uint64_t>(run));
  // 11 and kAll are coprime, so all cases occur, and a few runs are spread over
  // all cases.
  const int64_t number = run * 11 % kAll;
  Case result;
  result.kind = static_cast<Kind>(number % kKinds);
  result.place = number / kKinds;
  result.point = result.place * (points - 1) / (kPlaces - 1);
  result.culprit =
      static_cast<int64_t>(random() % static_cast<uint64_t>(world.ranks()));
  result.compares = result.kind == Kind::kCallsOther;
  return result;
}

std::string
missing_in(const std::string& output, const World& world, const Case& fault) {
  if (fault.is_absent()) {
    return missing_of_absent(output, world, fault);
  }
  if (fault.kind == Kind::kCallsOther) {
    return has(output, "disagree: ") &&
            has(output, c10::str("rank ", fault.culprit, " calls broadcast"))
        ? ""
        : "both calls";
  }
  if (!world.launcher.empty()) {
    return missing_under_mpirun(output, world, fault);
  }
  // Rank 0 hosts the store, which ends with it.
  const bool store_is_gone = fault.culprit < world.threads &&
      has(output, "the store cannot be reached");
  if (!store_is_gone && !names_culprit(output, world, fault)) {
    return "the rank and its host";
  }
  if (!has(output, "This was collective number ") ||
      !has(output, "on \"tp\": ")) {
    return "the collective's number and dimension";
  }
  return fault.kind != Kind::kThrows || store_is_gone ||
          has(output, "failed: no such row")
      ? ""
      : "why it failed";
}

} // namespace dtensor::process_faults
