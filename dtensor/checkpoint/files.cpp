// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/checkpoint/files_impl.h>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <dtensor/checkpoint/manifest_impl.h>
#include <dtensor/error.h>
#include <dtensor/format_text.h>
#include <dtensor/weights/json_document_impl.h>
#include <dtensor/weights/mapped_file_impl.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace dtensor::detail {

void throw_errno(const std::string& what, const std::string& path) {
  const std::string why = std::strerror(errno);
  DTENSOR_THROW(
      "[save_checkpoint] {} {}: {}. Save again once this is corrected; earlier "
      "checkpoints are unchanged.",
      what,
      path,
      why);
}

OutFile::OutFile(std::string path)
    : path_(std::move(path)),
      file_(::open(
          path_.c_str(),
          O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC,
          0666)) {
  if (file_ < 0) {
    throw_errno("cannot create", path_);
  }
}

OutFile::~OutFile() {
  if (file_ >= 0) {
    ::close(file_);
  }
}

void OutFile::write(const void* bytes, size_t count) {
  const auto* from = static_cast<const char*>(bytes);
  while (count > 0) {
    const auto done = ::write(file_, from, count);
    if (done < 0 && errno != EINTR) {
      throw_errno("cannot write", path_);
    }
    const auto some = done < 0 ? size_t{0} : static_cast<size_t>(done);
    from += some;
    count -= some;
  }
}

void OutFile::write_at(const void* bytes, size_t count, uint64_t offset) {
  if (::lseek(file_, static_cast<off_t>(offset), SEEK_SET) < 0) {
    throw_errno("cannot seek in", path_);
  }
  write(bytes, count);
}

void OutFile::close() {
  const bool is_synced = ::fsync(file_) == 0;
  const bool is_closed = ::close(std::exchange(file_, -1)) == 0;
  if (!is_synced || !is_closed) {
    throw_errno("cannot write", path_);
  }
}

void write_small_file(const std::string& path, const std::string& text) {
  const auto before = path + ".new";
  OutFile file(before);
  file.write(text.data(), text.size());
  file.close();
  if (::rename(before.c_str(), path.c_str()) != 0) {
    throw_errno("cannot write", path);
  }
}

std::string read_small_file(const std::string& path, std::string* why_not) {
  std::string problem;
  const int file = open_regular_file(path, problem);
  std::string text;
  std::array<char, 4096> some{};
  while (file >= 0) {
    const auto count = ::read(file, some.data(), some.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      problem = std::strerror(errno);
    }
    if (count <= 0) {
      break;
    }
    text.append(some.data(), static_cast<size_t>(count));
    if (text.size() > kMostJsonBytes) {
      problem = c10::str("it has more than ", kMostJsonBytes, " bytes");
      break;
    }
  }
  if (file >= 0) {
    ::close(file);
  }
  if (why_not != nullptr) {
    *why_not = problem;
  }
  return problem.empty() ? text : "";
}

OpenFolder::OpenFolder(const std::string& path)
    : file_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (file_ < 0) {
    throw_errno("cannot open the folder", path);
  }
}

OpenFolder::~OpenFolder() {
  ::close(file_);
}

bool OpenFolder::sync() const {
  return ::fsync(file_) == 0;
}

void sync_folder(const std::string& path) {
  const OpenFolder folder(path);
  if (!folder.sync()) {
    throw_errno("cannot write the folder", path);
  }
}

bool rename_folder(
    const std::string& from,
    const std::string& to,
    bool overwrite) {
  if (overwrite && is_there(to)) {
    if (::renameat2(
            AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) !=
        0) {
      throw_errno("cannot replace", to);
    }
    return true;
  }
  // The explicit check is needed because rename() would replace an empty
  // folder.
  const bool is_taken = is_there(to);
  errno = EEXIST;
  if (is_taken || ::rename(from.c_str(), to.c_str()) != 0) {
    throw_errno("cannot rename the checkpoint to", to);
  }
  return false;
}

std::vector<std::filesystem::path> entries_of(
    const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> entries;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error);
       !error && entry != std::filesystem::directory_iterator();
       entry.increment(error)) {
    entries.push_back(entry->path());
  }
  return entries;
}

bool is_there(const std::string& path) {
  struct stat about {};
  return ::lstat(path.c_str(), &about) == 0;
}

void remove_folder(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

FolderLock::FolderLock(const std::string& path)
    : file_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (file_ < 0) {
    held_elsewhere_ = true;
    return;
  }
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0) {
    held_elsewhere_ = errno == EWOULDBLOCK;
    return;
  }
  // The folder may have been removed and created again between open() and
  // flock().
  struct stat locked {};
  struct stat named {};
  held_ = ::fstat(file_, &locked) == 0 && ::lstat(path.c_str(), &named) == 0 &&
      locked.st_ino == named.st_ino && locked.st_dev == named.st_dev;
  held_elsewhere_ = !held_;
}

FolderLock::~FolderLock() {
  if (file_ >= 0) {
    ::close(file_);
  }
}

namespace {

namespace fs = std::filesystem;

// Returns true for names of files that a save writes, including temporary
// names.
bool is_named_by_saver(std::string_view name) {
  constexpr std::string_view kNotYetNamed = ".new";
  struct Pattern {
    std::string_view begin;
    std::string_view end;
  };
  constexpr std::array<Pattern, 5> kPatterns = {
      {{"shard-", ".safetensors"},
       {"model", ".safetensors"},
       {"model", ".safetensors.index.json"},
       {"rank-", ".json"},
       {kManifest, ""}}};
  if (name.ends_with(kNotYetNamed)) {
    name.remove_suffix(kNotYetNamed.size());
  }
  return std::ranges::any_of(kPatterns, [&](const Pattern& pattern) {
    return name.starts_with(pattern.begin) && name.ends_with(pattern.end) &&
        (!pattern.end.empty() || name == pattern.begin);
  });
}

} // namespace

bool is_checkpoint(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    return false;
  }
  try {
    return has_manifest(path);
  } catch (const c10::Error&) {
    return false;
  }
}

std::string problem_of_replacing(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    return "exists and is not a checkpoint";
  }
  const bool is_empty = fs::is_empty(path, error);
  if (error) {
    return "cannot be listed: " + error.message();
  }
  if (is_empty || is_checkpoint(path)) {
    return "";
  }
  const bool is_damaged = fs::exists(fs::path(path) / kManifest, error);
  return is_damaged
      ? detail::format_text("exists, but its {} was modified", kManifest)
      : c10::str("exists and contains files but no ", kManifest);
}

bool is_left_by_saver(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(path, error))) {
    return false;
  }
  if (is_checkpoint(path)) {
    return true;
  }
  return std::ranges::all_of(entries_of(path), [&](const fs::path& entry) {
    return is_named_by_saver(entry.filename().string()) &&
        fs::is_regular_file(fs::symlink_status(entry, error));
  });
}

void remove_checkpoint(const std::string& path) {
  std::error_code ignored;
  if (fs::is_directory(fs::symlink_status(path, ignored))) {
    for (const auto& entry : entries_of(path)) {
      if (entry.filename() != kManifest) {
        fs::remove_all(entry, ignored);
      }
    }
  }
  remove_folder(path);
}

} // namespace dtensor::detail
