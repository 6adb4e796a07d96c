// SPDX-License-Identifier: BSD-3-Clause
// Files as a checkpoint needs them: on disk before they have their name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace dtensor::detail {

/// What messages of the functions below begin with.
constexpr const char* kSaveCheckpoint = "save_checkpoint";

/// Throws RuntimeError with the reason that the system gives (errno).
[[noreturn]] void refuse_by_system(
    const std::string& what,
    const std::string& path);

/// A file that is written from front to end; what is not closed is not there.
class OutFile {
 public:
  /// Throws RuntimeError, as all below.
  explicit OutFile(std::string path);
  ~OutFile();
  OutFile(const OutFile&) = delete;
  OutFile& operator=(const OutFile&) = delete;

  void write(const void* bytes, size_t count);
  /// Over what was written.
  void write_at(const void* bytes, size_t count, uint64_t offset);
  /// Returns when the bytes are on disk.
  void close();

 private:
  std::string path_;
  int file_ = -1;
};

/// Writes a small file, whole or not at all: under another name first.
void write_small_file(const std::string& path, const std::string& text);

/// Its text; empty where it is not, or is no regular file.
std::string read_small_file(const std::string& path);

/// The same, with the reason in `why_not` where it cannot be read.
std::string read_small_file(const std::string& path, std::string& why_not);

/// The names in a folder are on disk then.
void sync_folder(const std::string& path);

/// Gives a folder its name, which nobody has, or, with `overwrite`, takes it
/// from another one, which has `from` then; returns whether there was one.
bool rename_folder(
    const std::string& from,
    const std::string& to,
    bool overwrite);

/// Whether anything has that name, a link to nothing too.
bool is_there(const std::string& path);

/// With all in it, as far as the system lets it; never an error.
void remove_folder(const std::string& path);

/// Whose folder it is: nobody else can lock it while this lives, and a process
/// that is killed lets go.
class FolderLock {
 public:
  explicit FolderLock(const std::string& path);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  bool is_held() const {
    return held_;
  }
  /// Somebody else holds it, or has taken its name. Where the file system has
  /// no locks, neither is known.
  bool is_of_another() const {
    return of_another_;
  }

 private:
  int file_ = -1;
  bool held_ = false;
  bool of_another_ = false;
};

} // namespace dtensor::detail
