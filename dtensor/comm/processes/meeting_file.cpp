// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/processes/open_store_impl.h>

#include <dtensor/comm/processes/greeting_impl.h>
#include <dtensor/error.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <map>
#include <string_view>
#include <thread>
#include <vector>

namespace dtensor::detail {
namespace {

namespace fs = std::filesystem;

// Lock on the open file, taken in the same way as c10d::FileStore does.
class FileLock {
 public:
  FileLock(
      const Descriptor& file,
      const std::string& path,
      int kind,
      Deadline deadline)
      : file_(file.get()) {
    constexpr auto kLockAgain = std::chrono::milliseconds(10);
    while (flock(file_, kind | LOCK_NB) != 0) {
      DTENSOR_CHECK(
          errno == EINTR || errno == EWOULDBLOCK,
          "[init_process_group] the file {} cannot be locked: {}. Use a file "
          "system with locks, or another init_method.",
          quoted(path),
          std::strerror(errno));
      DTENSOR_CHECK(
          std::chrono::steady_clock::now() < deadline,
          "[init_process_group] another process has locked the file {}. Stop "
          "that process, or give the job another file.",
          quoted(path));
      std::this_thread::sleep_for(kLockAgain);
    }
  }
  ~FileLock() {
    flock(file_, LOCK_UN);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int file_;
};

void check_folder(const std::string& path) {
  DTENSOR_CHECK_VALUE(
      !path.empty() && !fs::path(path).filename().empty(),
      "[init_process_group] {} names no file. Use \"file:///path\".",
      quoted("file://" + path));
  const fs::path folder = fs::path(path).parent_path();
  std::error_code wrong;
  DTENSOR_CHECK_VALUE(
      fs::is_directory(folder.empty() ? "." : folder, wrong),
      "[init_process_group] folder {} of {} does not exist. Create it, or use "
      "a file in another folder.",
      quoted(folder.string()),
      quoted("file://" + path));
}

bool can_make(const std::string& path) {
  const std::string folder = fs::path(path).parent_path().string();
  return access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) == 0;
}

// Stops reading after the largest size that a meeting file may have.
constexpr size_t kMostBytes = size_t{64} << 20;

std::string read_content(const Descriptor& file) {
  std::string content;
  std::vector<char> part(size_t{64} << 10);
  ssize_t got = 1;
  while (got > 0 && content.size() < kMostBytes) {
    got = read(file.get(), part.data(), part.size());
    content.append(part.data(), static_cast<size_t>(std::max<ssize_t>(got, 0)));
  }
  return content;
}

void check_content(const Descriptor& file, const std::string& path) {
  const std::string content = read_content(file);
  const std::string objection = content.size() >= kMostBytes
      ? "it has more than 64 MB"
      : invalid_store_file_reason(content);
  DTENSOR_CHECK_VALUE(
      objection.empty(),
      "[init_process_group] the file {} is not a FileStore file: {}. Use a "
      "file that does not exist yet.",
      quoted(path),
      objection);
}

// Returns the last value of each key of a valid file.
std::map<std::string_view, std::string_view> last_values(
    std::string_view content) {
  const auto take = [&] {
    uint32_t length = 0;
    std::memcpy(&length, content.data(), sizeof(length));
    const auto text = content.substr(sizeof(length), length);
    content.remove_prefix(sizeof(length) + length);
    return text;
  };
  std::map<std::string_view, std::string_view> values;
  while (!content.empty()) {
    const auto key = take();
    values[key] = take();
  }
  return values;
}

// Returns true if all `ranks` have opened and closed their stores.
bool is_finished(std::string_view content, int64_t ranks) {
  if (!invalid_store_file_reason(content).empty()) {
    return false;
  }
  auto values = last_values(content);
  return values["refcount/"] == "0" &&
      std::atoll(std::string(values["cleanup/"]).c_str()) >= ranks;
}

bool is_still_at(const Descriptor& file, const std::string& path) {
  struct stat opened {};
  struct stat now {};
  return fstat(file.get(), &opened) == 0 && stat(path.c_str(), &now) == 0 &&
      opened.st_dev == now.st_dev && opened.st_ino == now.st_ino;
}

} // namespace

void check_meeting_file(const std::string& path, Deadline deadline) {
  check_folder(path);
  struct stat status {};
  const bool exists = stat(path.c_str(), &status) == 0;
  DTENSOR_CHECK_VALUE(
      exists || !fs::is_symlink(fs::path(path)),
      "[init_process_group] {} is a link to a file that does not exist. Use "
      "the name of the file.",
      quoted(path));
  DTENSOR_CHECK_VALUE(
      !exists || S_ISREG(status.st_mode),
      "[init_process_group] {} is not a regular file. Use a file that does not "
      "exist yet.",
      quoted(path));
  // O_NONBLOCK: if a FIFO has replaced the file in the meantime, open() would
  // otherwise block.
  const Descriptor file(
      exists ? ::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC) : -1);
  DTENSOR_CHECK_VALUE(
      exists ? file.get() >= 0 : can_make(path),
      "[init_process_group] the file {} cannot be opened: {}. Use a file that "
      "all ranks can write.",
      quoted(path),
      std::strerror(errno));
  if (exists) {
    const FileLock lock(file, path, LOCK_SH, deadline);
    check_content(file, path);
  }
}

void remove_finished_meeting_file(
    const std::string& path,
    int64_t ranks) noexcept {
  constexpr auto kLongest = std::chrono::seconds(1);
  try {
    const Descriptor file(
        ::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
    if (file.get() < 0) {
      return;
    }
    const FileLock lock(
        file, path, LOCK_EX, std::chrono::steady_clock::now() + kLongest);
    if (is_finished(read_content(file), ranks) && is_still_at(file, path)) {
      unlink(path.c_str());
    }
  } catch (const std::exception&) {
    // The file stays. The next job that uses it gets an error.
  }
}

} // namespace dtensor::detail
