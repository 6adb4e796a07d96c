// SPDX-License-Identifier: BSD-3-Clause
#include "meeting.h"

#include "tally.h"

#include <chrono>
#include <cstdlib>

namespace dtensor::randomized {
namespace {

constexpr auto kPatience = std::chrono::seconds(20);

const std::string& first_of(
    const std::vector<Told>& told,
    std::string Told::*member) {
  static const std::string none;
  for (const auto& t : told) {
    if (!(t.*member).empty()) {
      return t.*member;
    }
  }
  return none;
}

} // namespace

bool AllResults::out_of_step() const {
  for (const auto& t : told_) {
    if (t.error.empty() != told_[0].error.empty() ||
        t.backward_error.empty() != told_[0].backward_error.empty()) {
      return true;
    }
  }
  return false;
}

const std::string& AllResults::error() const {
  return first_of(told_, &Told::error);
}

const std::string& AllResults::backward_error() const {
  return first_of(told_, &Told::backward_error);
}

const std::string& AllResults::difference() const {
  return first_of(told_, &Told::difference);
}

std::string AllResults::text() const {
  std::string text;
  for (const auto& t : told_) {
    text += "(" + (t.error.empty() ? t.backward_error : t.error) + ")";
  }
  return text;
}

AllResults Meeting::tell(Told told) {
  std::unique_lock lock(mutex_);
  here_.push_back(std::move(told));
  if (here_.size() == ranks_) {
    last_ = std::move(here_);
    here_.clear();
    ++round_;
    arrived_.notify_all();
    return AllResults(last_);
  }
  const auto round = round_;
  if (!arrived_.wait_for(lock, kPatience, [&] { return round_ != round; })) {
    print_line("stuck, a rank is missing: " + AllResults(here_).text());
    std::abort();
  }
  return AllResults(last_);
}

} // namespace dtensor::randomized
