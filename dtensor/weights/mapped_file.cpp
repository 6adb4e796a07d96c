// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/weights/mapped_file_impl.h>

#include <dtensor/error.h>
#include <dtensor/weights/json_document_impl.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

namespace dtensor::detail {

namespace {

// Returns the kind of a file that is not regular.
const char* kind_of(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFDIR:
      return "a folder, not a regular file";
    case S_IFIFO:
      return "a FIFO, not a regular file";
    case S_IFCHR:
    case S_IFBLK:
      return "a device, not a regular file";
    default:
      return "not a regular file";
  }
}

} // namespace

void refuse_file_with(
    const std::string& advice,
    const std::string& path,
    const std::string& why) {
  DTENSOR_THROW_VALUE("[open_weights] {}: {}. {}.", path, why, advice);
}

int open_regular_file(const std::string& path, std::string& why_not) {
  // Without these flags, opening a FIFO would wait for its writer, and opening
  // a terminal could make it the controlling terminal.
  const int file =
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (file < 0) {
    why_not = std::strerror(errno);
    return -1;
  }
  struct stat about {};
  if (::fstat(file, &about) == 0 && S_ISREG(about.st_mode)) {
    return file;
  }
  why_not = kind_of(about.st_mode);
  ::close(file);
  return -1;
}

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  std::string why_not;
  const int file = open_regular_file(path_, why_not);
  if (file < 0) {
    refuse_file(path_, why_not);
  }
  struct stat about {};
  ::fstat(file, &about);
  size_ = static_cast<size_t>(about.st_size);
  void* mapped = size_ == 0
      ? nullptr
      : ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
  const std::string why = std::strerror(errno);
  ::close(file);
  if (mapped == MAP_FAILED) {
    refuse_file(path_, "cannot be mapped: " + why);
  }
  data_ = static_cast<const std::byte*>(mapped);
}

void MappedFile::forget(const std::byte* begin, size_t bytes) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(begin);
  const auto from = (first + page - 1) / page * page;
  const auto to = (first + bytes) / page * page;
  if (from < to) {
    ::madvise(
        const_cast<std::byte*>(begin) + (from - first),
        to - from,
        MADV_DONTNEED);
  }
}

void MappedFile::read_ahead(const std::byte* begin, size_t bytes) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto rest = reinterpret_cast<uintptr_t>(begin) % page;
  if (bytes > 0) {
    ::madvise(
        const_cast<std::byte*>(begin) - rest, bytes + rest, MADV_WILLNEED);
  }
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

namespace {

namespace fs = std::filesystem;

bool is_plain(const std::string& name) {
  const fs::path path(name);
  return !name.empty() && name.size() < PATH_MAX && path.is_relative() &&
      name.find('\0') == name.npos &&
      std::ranges::find(path, "..") == path.end();
}

bool is_within(const fs::path& folder, const fs::path& file) {
  const auto end =
      std::mismatch(folder.begin(), folder.end(), file.begin(), file.end());
  return end.first == folder.end() && end.second != file.end();
}

} // namespace

std::string problem_of_inner_file(
    const std::string& list,
    const std::string& name) {
  const auto quote = quoted_json(name);
  if (!is_plain(name)) {
    return quote + " is not a relative path within the folder";
  }
  std::error_code error;
  const auto given = fs::absolute(list, error).parent_path();
  const auto folder = fs::weakly_canonical(given, error);
  const auto home = fs::weakly_canonical(list, error).parent_path();
  const auto file = fs::weakly_canonical(given / name, error);
  if (error || is_within(folder, file) || is_within(home, file)) {
    return ""; // opening the file reports the error
  }
  return quote + " is a link to " + quoted_json(file.string()) +
      ", outside of the folder";
}

} // namespace dtensor::detail
