// SPDX-License-Identifier: BSD-3-Clause
// SaveRun: the work of one rank in a save. A thread writes the rank's files and
// then a note file that announces them. Rank 0's thread waits for the notes of
// all ranks, writes checkpoint.json and renames the folder. For a full
// checkpoint, each thread also waits for the shards of all ranks, writes some
// of the full files, and writes a second note. Threads communicate through
// these files only.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <dtensor/checkpoint/checkpoint.h>
#include <dtensor/checkpoint/files_impl.h>
#include <dtensor/checkpoint/tensor_file_impl.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace dtensor::detail {

/// Buffer to which shards are copied before training continues. All saves reuse
/// it, and it grows when necessary.
class StagingBuffer {
 public:
  /// Replaces all values by copies on the CPU, each aligned to 64 bytes. The
  /// copies are valid until the next call.
  void copy(std::vector<at::Tensor>& values) {
    int64_t bytes = 0;
    for (const auto& value : values) {
      bytes += padded(value);
    }
    if (!memory_.defined() || memory_.numel() < bytes) {
      memory_.reset(); // free it before allocating the larger one
      memory_ = at::empty({bytes}, at::kByte);
    }
    int64_t at = 0;
    for (auto& value : values) {
      const auto size = value.numel() * value.element_size();
      auto copied = memory_.narrow(0, at, size)
                        .view(value.scalar_type())
                        .view(value.sizes());
      at += padded(value);
      copied.copy_(value);
      value = copied;
    }
  }

 private:
  static int64_t padded(const at::Tensor& value) {
    return (value.numel() * value.element_size() + 63) / 64 * 64;
  }
  at::Tensor memory_;
};

/// Task of the thread.
struct SaveTask {
  std::string path;   // of the checkpoint
  std::string folder; // temporary, until renamed
  int64_t rank = 0;   // in the group
  int64_t ranks = 1;
  int64_t files = 1; // maximum per rank
  /// Tensors of each of this rank's files. Files without tensors are not
  /// written.
  std::vector<std::vector<WrittenTensor>> tensors;
  std::string extra; // JSON
  /// Additional names of tensors, mapped to the names under which they are
  /// written.
  std::map<std::string, std::string> tied;
  bool full = false;
  int64_t max_file_bytes = 0;
  bool overwrite = false;
  std::chrono::seconds timeout{600};
  std::unique_ptr<FolderLock> lock; // on rank 0
};

/// Returns a number with at least five digits.
std::string five_digits(int64_t number);

/// Returns the temporary folder in which the checkpoint `path` is written.
std::string folder_of_save(const std::string& path);

/// Creates the temporary folder on rank 0, in place of the remains of a killed
/// save. Throws ValueError if `path` exists, RuntimeError if another process is
/// saving it.
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

  /// Waits until all ranks have written and the folder is renamed. All ranks of
  /// the group must call finish() once. Errors are thrown on all ranks.
  void finish(Group& group);

 private:
  /// Steps of a save. The first two end with a note, the last one with the
  /// checkpoint.
  enum Step : size_t { kShards, kFull, kCommit, kSteps };

  void run();
  bool does(Step step) const;
  FileNotes write_shards();
  FileNotes write_full();
  void write_with_note(Step step);
  void commit();
  void rename_into_place();
  FileNotes notes_of_all(Step step);
  void check_may_come(int64_t rank, std::chrono::steady_clock::time_point end)
      const;

  SaveTask task_;
  /// True if the thread must stop waiting for other ranks.
  std::atomic<bool> is_given_up_{false};
  bool is_renamed_ = false; // written by the thread
  std::array<std::promise<void>, kSteps> done_;
  std::thread thread_;
};

/// Assembles full tensors from the shards in `folder`, in the customary files.
/// Each rank writes some files under temporary names and returns their notes.
/// Afterwards one rank renames all files, writes the index, and removes the
/// shards. Additional names of tensors (`tied`) are stored in the metadata, as
/// Python's safetensors.torch.save_model writes them.
FileNotes write_full_files(
    const std::string& folder,
    const FileNotes& pieces,
    int64_t max_file_bytes,
    int64_t rank,
    int64_t ranks,
    const std::map<std::string, std::string>& tied = {});
void rename_full_files(
    const std::string& folder,
    const FileNotes& pieces,
    const FileNotes& full,
    int64_t max_file_bytes,
    const std::map<std::string, std::string>& tied = {});

} // namespace dtensor::detail
