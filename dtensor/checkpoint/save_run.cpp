// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/checkpoint/save_run_impl.h>

#include <dtensor/checkpoint/manifest_impl.h>
#include <dtensor/checkpoint/saved_tensors_impl.h>
#include <dtensor/error.h>

#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

#include <nlohmann/json.hpp>

#include <cstdio>
#include <filesystem>
#include <utility>

namespace dtensor::detail {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

std::string number(int64_t n) {
  std::array<char, 24> text{};
  std::snprintf(text.data(), text.size(), "%05lld", static_cast<long long>(n));
  return text.data();
}

// As Python's writer calls them.
std::string file_name(int64_t rank, int64_t file, int64_t files) {
  return "shard-" + number(rank + 1) + "-model-" + number(file + 1) + "-of-" +
      number(files) + ".safetensors";
}

std::string note_name(int64_t rank) {
  return "rank-" + number(rank) + ".json";
}

std::string within(const std::string& folder, const std::string& name) {
  return (fs::path(folder) / name).string();
}

} // namespace

std::string folder_of_save(const std::string& path) {
  const fs::path given(path);
  const auto whole = given.has_filename() ? given : given.parent_path();
  return (whole.parent_path() / ("." + whole.filename().string() + ".saving"))
      .string();
}

std::unique_ptr<FolderLock> make_folder_of_save(
    const std::string& path,
    bool overwrite) {
  DTENSOR_CHECK_VALUE(
      overwrite || !fs::exists(path),
      kSaveCheckpoint,
      path,
      " is there already. Choose another name, or overwrite = true.");
  const auto folder = folder_of_save(path);
  std::error_code error;
  if (fs::exists(folder)) {
    DTENSOR_CHECK(
        FolderLock(folder).is_held(),
        kSaveCheckpoint,
        folder,
        " belongs to a save that goes on. Wait for it.");
    fs::remove_all(folder, error);
  }
  if (!fs::create_directory(folder, error)) {
    errno = error.value();
    refuse_by_system("cannot make the folder", folder);
  }
  return std::make_unique<FolderLock>(folder);
}

SaveRun::SaveRun(SaveTask task)
    : task_(std::move(task)),
      thread_([this] { run(); }) {}

// What has failed is removed here and not by the thread: in finish() all ranks
// have ended their writing, which would fail for another reason otherwise. Who
// did not wait for the others leaves what they write to the next save.
SaveRun::~SaveRun() {
  thread_.join();
  if (task_.rank == 0 && !is_committed_) {
    remove_folder(task_.folder);
  }
}

void SaveRun::run() {
  const c10::NoGradGuard no_grad;
  const auto error = error_in([&] { write_own_files(); });
  error == nullptr ? written_.set_value() : written_.set_exception(error);
  if (task_.rank != 0) {
    return;
  }
  const auto commit_error =
      error != nullptr ? error : error_in([&] { commit(); });
  is_committed_ = commit_error == nullptr;
  if (is_committed_) {
    task_.lock.reset();
    committed_.set_value();
  } else {
    committed_.set_exception(commit_error);
  }
}

void SaveRun::write_own_files() {
  FileNotes notes;
  std::string text;
  const auto error = error_in([&] {
    for (size_t i = 0; i < task_.tensors.size(); ++i) {
      if (!task_.tensors[i].empty()) {
        const auto name =
            file_name(task_.rank, static_cast<int64_t>(i), task_.files);
        notes[name] = write_tensor_file(
            within(task_.folder, name), std::move(task_.tensors[i]), true);
      }
    }
    text = notes_text(notes);
  });
  if (error != nullptr) {
    text = nlohmann::json{{"error", text_of(error)}}.dump();
  }
  write_small_file(within(task_.folder, note_name(task_.rank)), text);
  if (error != nullptr) {
    std::rethrow_exception(error);
  }
}

FileNotes SaveRun::notes_of_all() {
  FileNotes all;
  const auto end = Clock::now() + task_.timeout;
  auto pause = std::chrono::milliseconds(1);
  for (int64_t rank = 0; rank < task_.ranks;) {
    const auto path = within(task_.folder, note_name(rank));
    const auto text = read_small_file(path);
    if (!text.empty()) {
      const auto note = nlohmann::json::parse(text);
      DTENSOR_CHECK(
          !note.contains("error"),
          kSaveCheckpoint,
          task_.path,
          " was not saved. rank ",
          rank,
          ": ",
          note.value("error", ""));
      all.merge(parse_notes(text));
      ++rank;
      continue;
    }
    DTENSOR_CHECK(
        !is_given_up_,
        kSaveCheckpoint,
        task_.path,
        " was not saved: a rank has failed. Its own error says why.");
    DTENSOR_CHECK(
        Clock::now() < end,
        kSaveCheckpoint,
        task_.path,
        " was not saved: no files of rank ",
        rank,
        " of ",
        task_.ranks,
        " after ",
        task_.timeout.count(),
        " s. Look what it does, or raise `timeout`.");
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(50));
  }
  return all;
}

void SaveRun::commit() {
  auto files = notes_of_all();
  if (task_.full) {
    files = make_full(task_.folder, task_.max_file_bytes);
  }
  for (int64_t rank = 0; rank < task_.ranks; ++rank) {
    fs::remove(within(task_.folder, note_name(rank)));
  }
  write_small_file(
      within(task_.folder, kManifest),
      manifest_text(task_.ranks, task_.extra, files));
  sync_folder(task_.folder);
  rename_folder(task_.folder, task_.path, task_.overwrite);
  const auto parent = fs::path(task_.folder).parent_path();
  sync_folder(parent.empty() ? "." : parent.string());
  remove_folder(task_.folder); // what was overwritten
}

void SaveRun::finish(Group& group) {
  const auto what = task_.path + " was not saved. ";
  const auto error = error_in([&] { written_.get_future().get(); });
  const auto failed =
      error_in([&] { check_none_failed(group, error, what, kSaveCheckpoint); });
  if (failed != nullptr) {
    is_given_up_ = true;
    std::rethrow_exception(failed);
  }
  const auto last = task_.rank != 0
      ? nullptr
      : error_in([&] { committed_.get_future().get(); });
  check_none_failed(group, last, what, kSaveCheckpoint);
}

} // namespace dtensor::detail
