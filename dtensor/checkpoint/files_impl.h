// SPDX-License-Identifier: BSD-3-Clause
// Durable files for checkpoints. Files are synced to disk before they get their
// final names. Functions that remove checkpoints.
#pragma once

#include <dtensor/comm/processes/write_signals_impl.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace dtensor::detail {

/// Prefix of the errors of the functions below.
constexpr const char* kSaveCheckpoint = "save_checkpoint";

/// Throws RuntimeError with the system's reason (errno).
[[noreturn]] void throw_errno(const std::string& what, const std::string& path);

/// File that is written sequentially. The file is valid only after close().
class OutFile {
 public:
  /// Opens the file. All member functions throw RuntimeError on failure.
  explicit OutFile(std::string path);
  ~OutFile();
  OutFile(const OutFile&) = delete;
  OutFile& operator=(const OutFile&) = delete;

  void write(const void* bytes, size_t count);
  /// Overwrites bytes written before.
  void write_at(const void* bytes, size_t count, uint64_t offset);
  /// Returns when the bytes are on disk.
  void close();

 private:
  IgnoreWriteSignals no_signals_; // a write beyond `ulimit -f` throws
  std::string path_;
  int file_ = -1;
};

/// Writes a small file atomically: under another name first, then renamed.
void write_small_file(const std::string& path, const std::string& text);

/// Returns the text of a regular file; "" if it cannot be read, with the reason
/// in `why_not`.
std::string read_small_file(
    const std::string& path,
    std::string* why_not = nullptr);

/// Folder whose entries can be made durable on disk.
class OpenFolder {
 public:
  /// Throws RuntimeError if the folder cannot be opened.
  explicit OpenFolder(const std::string& path);
  ~OpenFolder();
  OpenFolder(const OpenFolder&) = delete;
  OpenFolder& operator=(const OpenFolder&) = delete;

  /// Makes the folder's entries durable. Returns false and sets errno on
  /// failure.
  bool sync() const;

 private:
  int file_;
};

/// Makes the folder's entries durable on disk.
void sync_folder(const std::string& path);

/// Renames the folder `from` to `to`. With `overwrite`, exchanges it with an
/// existing `to` and returns true: `from` is then the old folder. Otherwise
/// `to` must not exist.
bool rename_folder(
    const std::string& from,
    const std::string& to,
    bool overwrite);

/// Returns the entries of the folder as far as they can be read. Other
/// processes may remove entries meanwhile.
std::vector<std::filesystem::path> entries_of(
    const std::filesystem::path& folder);

/// Returns true if an entry with that name exists, including a dangling link.
bool is_there(const std::string& path);

/// Removes the folder and its contents as far as permitted; never throws.
void remove_folder(const std::string& path);

/// Exclusive lock on a folder. The system releases it when the process ends.
class FolderLock {
 public:
  explicit FolderLock(const std::string& path);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  bool is_held() const {
    return held_;
  }
  /// Returns true if another process holds the lock, or has replaced the
  /// folder. On a file system without locks, both is_of_another() and is_held()
  /// return false.
  bool is_of_another() const {
    return held_elsewhere_;
  }

 private:
  int file_ = -1;
  bool held_ = false;
  bool held_elsewhere_ = false;
};

// Removal of folders that saves have created. Other folders are never removed.

/// Returns true if `path` is a folder with a checkpoint.json of
/// save_checkpoint(). Follows symbolic links.
bool is_checkpoint(const std::string& path);

/// Returns the reason why a checkpoint must not replace the entry at `path`; ""
/// if it may. Only a checkpoint, an empty folder, or a link to either may be
/// replaced.
std::string problem_of_replacing(const std::string& path);

/// Returns true if `path` is a folder that contains only the remains of an
/// interrupted save or of an interrupted remove_checkpoint().
bool is_left_by_saver(const std::string& path);

/// Removes a checkpoint, or its remains, as far as permitted. Removes
/// checkpoint.json last, so that the rest stays recognizable as a checkpoint.
/// Removes only the link if `path` is a link.
void remove_checkpoint(const std::string& path);

} // namespace dtensor::detail
