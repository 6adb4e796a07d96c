// SPDX-License-Identifier: BSD-3-Clause
// Rank 0 of a save in which the other rank does something else.
#include <dtensor/checkpoint/save_run_impl.h>
#include <dtensor/comm/world.h>
#include <tests/error_of.h>
#include <tests/weights/files.h>

#include <gtest/gtest.h>

#include <filesystem>

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

TEST(SaveRun, DoesNotWaitForEver) {
  const Folder folder;
  auto task = task_in(folder);
  task.timeout = std::chrono::seconds(0);
  EXPECT_EQ(
      error_of_run(std::move(task)),
      "[save_checkpoint] " + (folder / "one") +
          " was not saved: no files of rank 1 of 2 after 0 s. Look what it "
          "does, or raise `timeout`.");
  EXPECT_TRUE(fs::is_empty(folder / ""));
}

TEST(SaveRun, TellsWhatAnotherRankHasNoted) {
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

// Somebody else saves there, or was killed in it.
TEST(SaveRun, TakesOverWhatNobodyHolds) {
  const Folder folder;
  auto task = task_in(folder);
  EXPECT_EQ(
      error_of([&] { task_in(folder); }),
      "[save_checkpoint] " + task.folder +
          " belongs to a save that goes on. Wait for it.");
  detail::write_small_file(task.folder + "/rank-00001.json", "{}");
  task.lock.reset();
  task = task_in(folder);
  EXPECT_TRUE(fs::is_empty(task.folder));
}

} // namespace TEST_SOURCE
} // namespace dtensor
