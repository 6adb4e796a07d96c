// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/flight_record_impl.h>

#include <c10/util/Exception.h>
#include <dtensor/comm/backend/message_of_impl.h>
#include <dtensor/comm/processes/record_folder_impl.h>
#include <dtensor/format_text.h>
#include <fmt/chrono.h>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace dtensor::detail {
namespace {

using TimePoint = std::chrono::system_clock::time_point;

// Formats a time as "13:05:01.123456" (UTC).
std::string clock_text(TimePoint time) {
  const auto micros = std::chrono::floor<std::chrono::microseconds>(time);
  return fmt::format("{:%T}", micros);
}

double micros_between(TimePoint begin, TimePoint end) {
  return std::chrono::duration<double, std::micro>(end - begin).count();
}

double seconds_since_epoch(TimePoint time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

// Replaces the characters that are not allowed in file names.
std::string file_name(std::string text) {
  std::replace_if(
      text.begin(),
      text.end(),
      [](unsigned char c) { return std::isalnum(c) == 0 && c != '-'; },
      '_');
  return text;
}

// Warns without throwing, so that the warning cannot hide the original error.
void warn(const std::exception& error) noexcept {
  try {
    TORCH_WARN(message_of(error));
  } catch (const std::exception&) {
    // Warnings are configured to throw.
  }
}

} // namespace

FlightRecord::FlightRecord(
    int64_t rank,
    int64_t size,
    std::string host,
    std::string job)
    : rank_(rank),
      size_(size),
      host_(std::move(host)),
      job_(std::move(job)) {}

int64_t FlightRecord::begin(
    const std::string& label,
    std::string_view name,
    int64_t bytes) {
  Entry& next = entry(++last_);
  next.number = last_;
  next.label = label;
  next.name = name;
  next.bytes = bytes;
  next.begin = Clock::now();
  next.end = {};
  return last_;
}

void FlightRecord::end(int64_t number) {
  Entry& ended = entry(number);
  if (ended.number == number) {
    ended.end = Clock::now();
  }
}

std::vector<const FlightRecord::Entry*> FlightRecord::kept() const {
  std::vector<const Entry*> all;
  const auto kept = static_cast<int64_t>(kKept);
  for (int64_t i = std::max<int64_t>(1, last_ - kept + 1); i <= last_; ++i) {
    all.push_back(&entries_[static_cast<size_t>(i) % kKept]);
  }
  return all;
}

std::string FlightRecord::as_text(const std::string& why) const {
  std::string text = fmt::format(
      "rank {} of {}, process {} on {}\nwhy: {}\n\n{:>8}  {:15}  {:>12}  "
      "{:18} {:>12}  group\n",
      rank_,
      size_,
      getpid(),
      host_,
      why,
      "number",
      "begun (UTC)",
      "took us",
      "collective",
      "bytes");
  for (const Entry* entry : kept()) {
    const bool ended = entry->end != TimePoint();
    text += fmt::format(
        "{:8}  {:15}  {:>12}  {:18} {:12}  {}\n",
        entry->number,
        clock_text(entry->begin),
        ended ? fmt::format("{:.0f}", micros_between(entry->begin, entry->end))
              : "not ended",
        entry->name,
        entry->bytes,
        entry->label);
  }
  return text;
}

std::string FlightRecord::as_json(const std::string& why) const {
  auto collectives = nlohmann::json::array();
  for (const Entry* entry : kept()) {
    nlohmann::json item = {
        {"number", entry->number},
        {"group", entry->label},
        {"collective", entry->name},
        {"bytes", entry->bytes},
        {"begin", seconds_since_epoch(entry->begin)},
        {"end", nullptr}};
    if (entry->end != TimePoint()) {
      item["end"] = seconds_since_epoch(entry->end);
    }
    collectives.push_back(std::move(item));
  }
  const nlohmann::json all = {
      {"rank", rank_},
      {"world_size", size_},
      {"process", getpid()},
      {"host", host_},
      {"why", why},
      {"collectives", collectives}};
  // Messages may quote bytes that are not valid UTF-8.
  return all.dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string FlightRecord::write(const std::string& why) const noexcept {
  try {
    const char* const wanted = std::getenv("DTENSOR_FLIGHT_RECORD");
    if (wanted != nullptr && std::string_view(wanted) == "off") {
      return "";
    }
    const auto folder = wanted != nullptr && *wanted != '\0'
        ? RecordFolder::named(wanted)
        : RecordFolder::of_user();
    const std::string name = detail::format_text(
        "{}.rank{}", file_name(job_.empty() ? "job" : job_), rank_);
    folder.write(name + ".json", as_json(why) + "\n");
    return folder.write(name + ".txt", as_text(why));
  } catch (const std::exception& error) {
    warn(error);
    return "";
  }
}

} // namespace dtensor::detail
