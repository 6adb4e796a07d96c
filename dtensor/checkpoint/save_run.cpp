// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/checkpoint/save_run_impl.h>

#include <dtensor/checkpoint/files_impl.h>
#include <dtensor/checkpoint/manifest_impl.h>
#include <dtensor/checkpoint/saved_tensors_impl.h>
#include <dtensor/error.h>

#include <ATen/core/grad_mode.h>

#include <nlohmann/json.hpp>

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace dtensor::detail {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Returns a file name in the format of Python's writer.
std::string file_name(int64_t rank, int64_t file, int64_t files) {
  return "shard-" + five_digits(rank + 1) + "-model-" + five_digits(file + 1) +
      "-of-" + five_digits(files) + ".safetensors";
}

// Returns the name of a rank's note about its shard files or its full files.
std::string note_name(int64_t rank, bool is_full) {
  return "rank-" + five_digits(rank) + (is_full ? "-whole" : "") + ".json";
}

std::string within(const std::string& folder, const std::string& name) {
  return (fs::path(folder) / name).string();
}

// Throws unless the path may be replaced. Only checkpoints and empty folders
// may be replaced.
void check_may_be_replaced(const std::string& path) {
  const auto why = is_there(path) ? problem_of_replacing(path) : "";
  DTENSOR_CHECK_VALUE(
      why.empty(),
      "[save_checkpoint] {} {}. Choose another name, or move it.",
      path,
      why);
}

void check_path_to_save(const std::string& path, bool overwrite) {
  DTENSOR_CHECK_VALUE(
      !fs::path(path).filename().empty() || fs::path(path).has_parent_path(),
      "[save_checkpoint] the path is empty. Pass the name of the checkpoint "
      "folder.");
  DTENSOR_CHECK_VALUE(
      overwrite || !is_there(path),
      "[save_checkpoint] {} already exists. Choose another name, or set "
      "overwrite = true.",
      path);
  check_may_be_replaced(path);
}

} // namespace

std::string five_digits(int64_t number) {
  const auto digits = std::to_string(number);
  return std::string(5 - std::min<size_t>(digits.size(), 5), '0') + digits;
}

std::string folder_of_save(const std::string& path) {
  const fs::path given(path);
  const auto folder = given.has_filename() ? given : given.parent_path();
  return (folder.parent_path() / ("." + folder.filename().string() + ".saving"))
      .string();
}

std::unique_ptr<FolderLock> make_folder_of_save(
    const std::string& path,
    bool overwrite) {
  check_path_to_save(path, overwrite);
  const auto folder = folder_of_save(path);
  const auto check_is_ours = [&](bool is_ours) {
    DTENSOR_CHECK(
        is_ours,
        "[save_checkpoint] {} is in use by another save. Wait for it.",
        folder);
  };
  std::error_code ignored;
  const bool is_folder = fs::is_directory(fs::symlink_status(folder, ignored));
  if (is_folder || is_there(folder)) {
    const FolderLock left(folder);
    check_is_ours(!is_folder || left.is_held());
    DTENSOR_CHECK(
        is_left_by_saver(folder),
        "[save_checkpoint] {} exists and was not left by a save. Move it, or "
        "choose another name.",
        folder);
    remove_checkpoint(folder);
  }
  if (::mkdir(folder.c_str(), 0777) != 0) {
    check_is_ours(errno != EEXIST);
    throw_errno("cannot make the folder", folder);
  }
  auto lock = std::make_unique<FolderLock>(folder);
  check_is_ours(!lock->is_of_another());
  return lock;
}

SaveRun::SaveRun(SaveTask task)
    : task_(std::move(task)),
      thread_([this] { run(); }) {}

// A failed save is removed here and not by the thread. After finish(), all
// ranks have stopped writing; an earlier removal would make their writes fail
// with a misleading error. If finish() was not called, files that other ranks
// still write are left for the next save to remove. After the rename, the
// temporary folder is the replaced checkpoint and is kept.
SaveRun::~SaveRun() {
  if (thread_.joinable()) {
    thread_.join();
  }
  if (task_.rank == 0 && !is_renamed_) {
    remove_folder(task_.folder);
  }
}

bool SaveRun::does(Step step) const {
  return step == kShards || (step == kFull && task_.full) ||
      (step == kCommit && task_.rank == 0);
}

// Runs all steps. If a step fails, the later steps complete with the same
// error.
void SaveRun::run() {
  const c10::NoGradGuard no_grad;
  std::exception_ptr error;
  for (const Step step : {kShards, kFull, kCommit}) {
    if (!does(step)) {
      continue;
    }
    if (error == nullptr) {
      error =
          error_in([&] { step == kCommit ? commit() : write_with_note(step); });
    }
    if (step == kCommit && error == nullptr) {
      task_.lock.reset();
    }
    error == nullptr ? done_[step].set_value()
                     : done_[step].set_exception(error);
  }
}

FileNotes SaveRun::write_shards() {
  FileNotes notes;
  for (size_t i = 0; i < task_.tensors.size(); ++i) {
    if (!task_.tensors[i].empty()) {
      const auto name =
          file_name(task_.rank, static_cast<int64_t>(i), task_.files);
      notes[name] = write_tensor_file(
          within(task_.folder, name), std::move(task_.tensors[i]), true);
    }
  }
  return notes;
}

FileNotes SaveRun::write_full() {
  return write_full_files(
      task_.folder,
      notes_of_all(kShards),
      task_.max_file_bytes,
      task_.rank,
      task_.ranks,
      task_.tied);
}

// Writes this rank's files and its note. If an error occurs, the note contains
// the error, if the note can be written at all.
void SaveRun::write_with_note(Step step) {
  const auto note = within(task_.folder, note_name(task_.rank, step == kFull));
  std::string text;
  const auto error = error_in([&] {
    text = notes_text(step == kFull ? write_full() : write_shards());
    write_small_file(note, text);
  });
  if (error != nullptr) {
    text = nlohmann::json{{"error", text_of(error)}}.dump(
        -1, ' ', false, nlohmann::json::error_handler_t::replace);
    error_in([&] { write_small_file(note, text); });
    std::rethrow_exception(error);
  }
}

// Throws if the files of `rank` can no longer be expected.
void SaveRun::check_may_come(int64_t rank, Clock::time_point end) const {
  DTENSOR_CHECK(
      !is_given_up_,
      "[save_checkpoint] {} was not saved: a rank failed. See its own error.",
      task_.path);
  std::error_code ignored;
  DTENSOR_CHECK(
      fs::exists(task_.folder, ignored),
      "[save_checkpoint] {} was not saved: {} was removed during the save. "
      "Save it again.",
      task_.path,
      task_.folder);
  DTENSOR_CHECK(
      Clock::now() < end,
      "[save_checkpoint] {} was not saved: no files of rank {} of {} after {} "
      "s. Check what that rank is doing, or raise `timeout`.",
      task_.path,
      rank,
      task_.ranks,
      task_.timeout.count());
}

FileNotes SaveRun::notes_of_all(Step step) {
  FileNotes all;
  const auto end = Clock::now() + task_.timeout;
  auto pause = std::chrono::milliseconds(1);
  for (int64_t rank = 0; rank < task_.ranks;) {
    const auto path = within(task_.folder, note_name(rank, step == kFull));
    const auto text = read_small_file(path);
    if (!text.empty()) {
      const JsonDocument note(
          text, {kSaveCheckpoint, path, "", "Save the checkpoint again"});
      const auto error = note.root().find("error");
      DTENSOR_CHECK(
          !error,
          "[save_checkpoint] {} was not saved. rank {}: {}",
          task_.path,
          rank,
          error ? error->text() : "");
      all.merge(notes_of(note.root(), path));
      ++rank;
      continue;
    }
    check_may_come(rank, end);
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(50));
  }
  return all;
}

void SaveRun::commit() {
  auto files = notes_of_all(kShards);
  if (task_.full) {
    auto full = notes_of_all(kFull);
    rename_full_files(
        task_.folder, files, full, task_.max_file_bytes, task_.tied);
    files = std::move(full);
  }
  for (int64_t rank = 0; rank < task_.ranks; ++rank) {
    fs::remove(within(task_.folder, note_name(rank, false)));
    fs::remove(within(task_.folder, note_name(rank, true)));
  }
  write_small_file(
      within(task_.folder, kManifest),
      manifest_text(task_.ranks, task_.extra, files));
  sync_folder(task_.folder);
  if (task_.overwrite) {
    check_may_be_replaced(task_.path); // it may have changed since begin
  }
  rename_into_place();
}

// Opens the parent folder before the rename. Without the permission to read it,
// the save fails before anything has changed.
void SaveRun::rename_into_place() {
  const auto above = fs::path(task_.folder).parent_path().string();
  const auto parent = above.empty() ? "." : above;
  const OpenFolder folder(parent);
  // The lock protects the replaced folder until it is removed.
  const FolderLock before(task_.path);
  const bool is_exchanged =
      rename_folder(task_.folder, task_.path, task_.overwrite);
  is_renamed_ = true;
  if (!folder.sync()) {
    const std::string why = std::strerror(errno);
    DTENSOR_THROW(
        "[save_checkpoint] cannot write the folder {}: {}. {} has the new "
        "checkpoint, but a power failure may undo the rename{}. Save again "
        "with overwrite = true once this is corrected.",
        parent,
        why,
        task_.path,
        is_exchanged ? "; " + task_.folder + " has the earlier checkpoint"
                     : "");
  }
  if (is_exchanged) {
    remove_checkpoint(task_.folder);
  }
}

// Agrees on the result after each step, so that no rank waits for the files of
// a rank that has failed.
void SaveRun::finish(Group& group) {
  const auto what = task_.path + " was not saved. ";
  for (const Step step : {kShards, kFull, kCommit}) {
    if (step == kFull && !task_.full) {
      continue;
    }
    const auto error = does(step)
        ? error_in([&] { done_[step].get_future().get(); })
        : nullptr;
    const auto failed = error_in(
        [&] { check_none_failed(group, error, what, kSaveCheckpoint); });
    if (failed != nullptr) {
      is_given_up_ = true;
      thread_.join();
      // All ranks must stop writing before rank 0 removes the folder.
      if (task_.full) {
        error_in([&] { group.all_gather_strings(""); });
      }
      std::rethrow_exception(failed);
    }
  }
}

} // namespace dtensor::detail
