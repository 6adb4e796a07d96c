// SPDX-License-Identifier: BSD-3-Clause
// One rank's share of a save: a thread that writes its files and says so in a
// note beside them; that of rank 0 waits for the notes of all, writes
// checkpoint.json and gives the folder its name. Of a full checkpoint each
// waits for the pieces of all, and writes some of the whole files and a second
// note before. Threads communicate with nobody: notes are files.
#pragma once

#include <dtensor/checkpoint/checkpoint.h>
#include <dtensor/checkpoint/files_impl.h>
#include <dtensor/checkpoint/tensor_file_impl.h>

#include <array>
#include <atomic>
#include <exception>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace dtensor::detail {

/// What the thread is to do.
struct SaveTask {
  std::string path;   // the checkpoint's
  std::string folder; // where it is written
  int64_t rank = 0;   // in the group
  int64_t ranks = 1;
  int64_t files = 1; // that a rank has at most
  /// Of each of this rank's files; those without tensors are not written.
  std::vector<std::vector<WrittenTensor>> tensors;
  std::string extra; // JSON
  /// Further names of tensors, and the names that they are written under.
  std::map<std::string, std::string> tied;
  bool full = false;
  int64_t max_file_bytes = 0;
  bool overwrite = false;
  std::chrono::seconds timeout{600};
  std::unique_ptr<FolderLock> lock; // of rank 0
};

/// The folder in which the checkpoint `path` is written.
std::string folder_of_save(const std::string& path);

/// Rank 0 makes it, in place of what a save that was killed has left. Throws
/// ValueError for a path that is there, RuntimeError for one that somebody else
/// is saving.
std::unique_ptr<FolderLock> make_folder_of_save(
    const std::string& path,
    bool overwrite);

class SaveRun {
 public:
  explicit SaveRun(SaveTask task);
  /// Waits for the thread.
  ~SaveRun();
  SaveRun(const SaveRun&) = delete;
  SaveRun& operator=(const SaveRun&) = delete;

  /// Waits until all have written and the folder has its name. All ranks of the
  /// group call it, once; throws on all of them.
  void finish(Group& group);

 private:
  /// What ends with a note, and what with the checkpoint.
  enum Step : size_t { kPieces, kWhole, kCommit, kSteps };

  void run();
  bool does(Step step) const;
  FileNotes write_pieces();
  FileNotes write_whole();
  void write_with_note(Step step);
  void commit();
  FileNotes notes_of_all(Step step);
  void check_may_come(int64_t rank, std::chrono::steady_clock::time_point end)
      const;

  SaveTask task_;
  /// The thread waits for nobody any more.
  std::atomic<bool> is_given_up_{false};
  bool is_committed_ = false; // once the thread has ended
  std::array<std::promise<void>, kSteps> done_;
  std::thread thread_;
};

/// Puts the pieces in `folder` together to whole tensors in the customary
/// files. Each rank writes some of them, under names that are not their last,
/// and returns which; when all have, one gives all their names, writes the
/// index, and removes the pieces. Further names of tensors (`tied`) stand in
/// the metadata, as Python's safetensors.torch.save_model writes them.
FileNotes write_whole_files(
    const std::string& folder,
    const FileNotes& pieces,
    int64_t max_file_bytes,
    int64_t rank,
    int64_t ranks,
    const std::map<std::string, std::string>& tied = {});
void name_whole_files(
    const std::string& folder,
    const FileNotes& pieces,
    const FileNotes& whole,
    int64_t max_file_bytes,
    const std::map<std::string, std::string>& tied = {});

} // namespace dtensor::detail
