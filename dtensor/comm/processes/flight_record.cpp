// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/flight_record_impl.h>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <dtensor/comm/backend/message_of_impl.h>
#include <dtensor/comm/processes/sockets_impl.h>
#include <dtensor/error.h>
#include <fmt/chrono.h>
#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

namespace dtensor::detail {
namespace {

namespace fs = std::filesystem;
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
  std::ranges::replace_if(
      text,
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

// A folder that only this user can write, even if other users have created
// entries under its name before.
class RecordFolder {
 public:
  /// Opens "dtensor-flight-<user>" in the temporary directory, created with
  /// mode 0700. Creates a new folder in the temporary directory if this entry
  /// belongs to another user, is writable by others, or is not a folder. Throws
  /// RuntimeError.
  static RecordFolder of_user();
  /// Opens the folder at `path`, which the user chose. Creates it and its
  /// parents if necessary. Throws RuntimeError.
  static RecordFolder named(const std::string& path);

  /// Replaces the file `name` in the folder, with mode 0600, and returns its
  /// path. Does not follow links or block on FIFOs. Throws RuntimeError.
  std::string write(const std::string& name, const std::string& content) const;

 private:
  RecordFolder(Descriptor folder, std::string path)
      : folder_(std::move(folder)),
        path_(std::move(path)) {}

  Descriptor folder_;
  std::string path_;
};

[[noreturn]] void
fail(const std::string& what, const std::string& path, int wrong) {
  DTENSOR_THROW(
      "[flight record] {} \"{}\": {}. Set DTENSOR_FLIGHT_RECORD to a folder "
      "that this user can write, or to \"off\".",
      what,
      path,
      std::system_category().message(wrong));
}

Descriptor open_folder(const std::string& path, int more_flags) {
  return Descriptor(
      ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | more_flags));
}

// Returns true if no other user can create, remove or link files in the open
// folder.
bool is_own(const Descriptor& folder) {
  struct stat status {};
  return folder.get() >= 0 && fstat(folder.get(), &status) == 0 &&
      status.st_uid == geteuid() && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

RecordFolder RecordFolder::of_user() {
  std::string path =
      (fs::temp_directory_path() / c10::str("dtensor-flight-", geteuid()))
          .string();
  mkdir(path.c_str(), S_IRWXU);
  Descriptor folder = open_folder(path, O_NOFOLLOW);
  if (!is_own(folder)) {
    path += "-XXXXXX";
    if (mkdtemp(path.data()) == nullptr) {
      fail("cannot make a folder", path, errno);
    }
    folder = open_folder(path, O_NOFOLLOW);
    if (!is_own(folder)) {
      fail("cannot open the folder", path, errno);
    }
  }
  return {std::move(folder), std::move(path)};
}

RecordFolder RecordFolder::named(const std::string& path) {
  std::error_code wrong;
  const fs::path parent = fs::path(path).parent_path();
  if (!parent.empty()) {
    fs::create_directories(parent, wrong);
  }
  mkdir(path.c_str(), S_IRWXU);
  Descriptor folder = open_folder(path, 0);
  if (folder.get() < 0) {
    fail("cannot open the folder", path, errno);
  }
  return {std::move(folder), path};
}

std::string RecordFolder::write(
    const std::string& name,
    const std::string& content) const {
  std::string path = (fs::path(path_) / name).string();
  // Removes an existing link or FIFO of that name; a link's target is not
  // affected.
  unlinkat(folder_.get(), name.c_str(), 0);
  const Descriptor file(openat(
      folder_.get(),
      name.c_str(),
      O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC,
      S_IRUSR | S_IWUSR));
  if (file.get() < 0) {
    fail("cannot make the file", path, errno);
  }
  for (size_t written = 0; written < content.size();) {
    const ssize_t now =
        ::write(file.get(), content.data() + written, content.size() - written);
    if (now < 0) {
      fail("cannot write the file", path, errno);
    }
    written += static_cast<size_t>(now);
  }
  return path;
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
