// SPDX-License-Identifier: BSD-3-Clause
// Rank 0 of a save in which the other rank or the file system fails.
#include <dtensor/checkpoint/checkpoint.h>
#include <dtensor/checkpoint/save_run_impl.h>
#include <dtensor/comm/world.h>
#include <dtensor/weights/weight_file.h>
#include <tests/error_of.h>
#include <tests/weights/files.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <map>
#include <thread>

namespace {

// Number of folders that are synced before one fails; -1: none fails.
std::atomic<int> folders_before_failure{-1};

} // namespace

// Replaces the C library's function in this program.
extern "C" int fsync(int file) {
  struct stat about {};
  if (folders_before_failure >= 0 && ::fstat(file, &about) == 0 &&
      S_ISDIR(about.st_mode) && folders_before_failure-- == 0) {
    errno = EIO;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_fsync, file));
}

namespace dtensor {
namespace TEST_SOURCE {

using test_text::error_of;
using test_weights::Folder;
namespace fs = std::filesystem;

detail::SaveTask task_in(const Folder& folder) {
  detail::SaveTask task;
  task.path = folder / "one";
  task.folder = detail::folder_of_save(task.path);
  task.ranks = 2;
  task.extra = "{}";
  task.lock = detail::make_folder_of_save(task.path, false);
  return task;
}

std::string error_of_run(detail::SaveTask task) {
  const auto group = new_group({0}, "alone");
  detail::SaveRun run(std::move(task));
  return error_of([&] { run.finish(*group); });
}

TEST(SaveRun, TimesOut) {
  const Folder folder;
  auto task = task_in(folder);
  task.timeout = std::chrono::seconds(0);
  EXPECT_EQ(
      error_of_run(std::move(task)),
      "[save_checkpoint] " + (folder / "one") +
          " was not saved: no files of rank 1 of 2 after 0 s. Check what that "
          "rank is doing, or raise `timeout`.");
  EXPECT_TRUE(fs::is_empty(folder / ""));
}

TEST(SaveRun, ReportsErrorsOfOtherRanks) {
  const Folder folder;
  auto task = task_in(folder);
  detail::write_small_file(
      task.folder + "/rank-00001.json", R"({"error": "the disk is full"})");
  EXPECT_EQ(
      error_of_run(std::move(task)),
      "[save_checkpoint] " + (folder / "one") +
          " was not saved. rank 1: the disk is full");
  EXPECT_TRUE(fs::is_empty(folder / ""));
}

TEST(SaveRun, FailsIfItsFolderIsRemoved) {
  const Folder folder;
  auto task = task_in(folder);
  const auto gone = task.folder;
  const auto group = new_group({0}, "alone");
  detail::SaveRun run(std::move(task));
  while (!fs::exists(gone + "/rank-00000.json")) {
    std::this_thread::yield();
  }
  fs::remove_all(gone);
  EXPECT_EQ(
      error_of([&] { run.finish(*group); }),
      "[save_checkpoint] " + (folder / "one") + " was not saved: " + gone +
          " was removed during the save. Save it again.");
}

void save(const std::string& path, double value) {
  StateDict state;
  state.insert("w", at::full({3}, value));
  save_checkpoint(path, {.tensors = &state}, {.overwrite = true});
}

double load(const std::string& path) {
  StateDict state;
  state.insert("w", at::zeros({3}));
  load_checkpoint(path, {.tensors = &state});
  return state["w"].mean().item<double>();
}

// Files of this thread, and of threads that it starts, are accessed with the
// permissions of another user, if this process may do so.
class OtherUser {
 public:
  OtherUser() : before_(::setfsuid(65534)) {}
  ~OtherUser() {
    ::setfsuid(static_cast<uid_t>(before_));
  }
  OtherUser(const OtherUser&) = delete;
  OtherUser& operator=(const OtherUser&) = delete;

 private:
  int before_;
};

// A folder in which entries can be renamed, but which cannot be opened.
TEST(SaveRun, ChangesNothingInAFolderThatCannotBeOpened) {
  const Folder folder;
  const auto path = folder / "one";
  const auto parent = fs::path(path).parent_path().string();
  fs::permissions(parent, fs::perms::all);
  std::string error;
  {
    const OtherUser user;
    std::error_code unreachable;
    if (!fs::exists(parent, unreachable)) {
      GTEST_SKIP() << "other users cannot reach the temporary folder";
    }
    save(path, 1);
  }
  constexpr auto kReads =
      fs::perms::owner_read | fs::perms::group_read | fs::perms::others_read;
  fs::permissions(parent, kReads, fs::perm_options::remove);
  {
    const OtherUser user;
    std::error_code unreadable;
    const fs::directory_iterator entries(parent, unreadable);
    if (!unreadable) {
      GTEST_SKIP() << "this user may open any folder";
    }
    error = error_of([&] { save(path, 2); });
  }
  fs::permissions(parent, fs::perms::all);
  EXPECT_EQ(
      error,
      "[save_checkpoint] cannot open the folder " + parent +
          ": Permission denied. Save again once this is corrected; earlier "
          "checkpoints are unchanged.");
  EXPECT_EQ(load(path), 1);
  EXPECT_FALSE(fs::exists(folder / ".one.saving"));
}

// The new checkpoint has its name, and the earlier one still exists.
TEST(SaveRun, KeepsTheOldCheckpointIfTheRenameIsNotDurable) {
  const Folder folder;
  const auto path = folder / "one";
  const auto before = folder / ".one.saving";
  save(path, 1);
  folders_before_failure = 1; // the first is that of the new checkpoint
  EXPECT_EQ(
      error_of([&] { save(path, 2); }),
      "[save_checkpoint] cannot write the folder " +
          fs::path(path).parent_path().string() + ": Input/output error. " +
          path +
          " has the new checkpoint, but a power failure may undo the rename; " +
          before +
          " has the earlier checkpoint. Save again with overwrite = true once "
          "this is corrected.");
  EXPECT_EQ(folders_before_failure, -1);
  EXPECT_EQ(load(path), 2);
  EXPECT_EQ(load(before), 1);
  save(path, 3);
  EXPECT_EQ(load(path), 3);
  EXPECT_FALSE(fs::exists(before));
}

std::map<std::string, std::string> bytes_in(const std::string& folder) {
  std::map<std::string, std::string> all;
  for (const auto& entry : fs::directory_iterator(folder)) {
    all[entry.path().filename().string()] =
        detail::read_small_file(entry.path().string());
  }
  return all;
}

// Each rank writes some of the full files. Together, the files equal those that
// a single rank would write.
TEST(WholeFiles, AreAssignedToRanks) {
  const Folder folder;
  for (const auto* name : {"one", "three"}) {
    fs::create_directory(folder / name);
    for (int piece = 0; piece < 4; ++piece) {
      const auto value = at::arange(6, at::kDouble).view({2, 3}) + piece;
      const auto whole = "w" + std::to_string(piece);
      detail::write_tensor_file(
          (folder / name) + "/piece" + std::to_string(piece) + ".safetensors",
          {{"cut",
            at::kFloat,
            {2 * piece, 0},
            {2, 3},
            detail::rows_of(value.to(at::kFloat))},
           {whole, at::kDouble, {0, 0}, {2, 3}, detail::rows_of(value)}},
          true);
    }
  }
  detail::FileNotes pieces;
  for (int piece = 0; piece < 4; ++piece) {
    pieces["piece" + std::to_string(piece) + ".safetensors"] = {};
  }
  const auto write = [&](const std::string& path, int64_t ranks) {
    detail::FileNotes all;
    for (int64_t rank = ranks - 1; rank >= 0; --rank) {
      auto own = detail::write_full_files(path, pieces, 60, rank, ranks);
      EXPECT_EQ(own.size(), ranks == 1 ? 5 : rank == 2 ? 1 : 2);
      all.merge(own);
    }
    detail::rename_full_files(path, pieces, all, 60);
    return all;
  };
  EXPECT_EQ(write(folder / "one", 1), write(folder / "three", 3));
  const auto files = bytes_in(folder / "one");
  EXPECT_EQ(files.size(), 6);
  EXPECT_TRUE(files.contains("model-00005-of-00005.safetensors"));
  EXPECT_TRUE(files.contains("model.safetensors.index.json"));
  EXPECT_EQ(files, bytes_in(folder / "three"));
  EXPECT_TRUE(at::equal(
      open_weights(folder / "three")->read("cut")[7],
      at::tensor({6., 7., 8.}, at::kFloat)));
}

// The folder of a save in progress is refused; the remains of a killed save are
// replaced.
TEST(SaveRun, TakesOverAnAbandonedFolder) {
  const Folder folder;
  auto task = task_in(folder);
  EXPECT_EQ(
      error_of([&] { task_in(folder); }),
      "[save_checkpoint] " + task.folder +
          " is in use by another save. Wait for it.");
  detail::write_small_file(task.folder + "/rank-00001.json", "{}");
  task.lock.reset();
  task = task_in(folder);
  EXPECT_TRUE(fs::is_empty(task.folder));
}

} // namespace TEST_SOURCE
} // namespace dtensor
