// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/checkpoint/async_saver.h>
#include <dtensor/checkpoint/checkpoint_folder.h>
#include <tests/parallel/modules.h>
#include <tests/weights/files.h>

#include <sys/resource.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test_modules;
using test_weights::Folder;
namespace fs = std::filesystem;

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST(AsyncSaverTest, SavesWhatWasThereWhenItWasCalled) {
  const Folder parent;
  fs::create_directory(parent / "run");
  const auto whole = at::arange(300000, at::kDouble).view({300, 1000});
  for (const int64_t ranks : {1, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks});
      StateDict state;
      state.insert(
          "w", distribute_tensor(whole, mesh, {Shard(0)}, std::nullopt));
      state.insert("plain", whole.clone());
      AsyncSaver saver;
      for (int64_t step = 0; step < 4; ++step) {
        const auto path = parent / "run/step_" + std::to_string(step);
        saver.save(path, {.tensors = &state}, {.overwrite = true});
        for (auto& item : state) {
          item.value().add_(1);
        }
      }
      saver.wait();
      saver.wait(); // returns at once: no save is in flight
      for (int64_t step = 0; step < 4; ++step) {
        auto loaded = state;
        load_checkpoint(
            parent / "run/step_" + std::to_string(step), {.tensors = &loaded});
        for (const auto& item : loaded) {
          EXPECT_TRUE(
              at::equal(full(item.value()), whole + static_cast<double>(step)))
              << item.key() << " of step " << step;
        }
      }
    });
    EXPECT_EQ(
        names_in(parent / "run"),
        (std::vector<std::string>{"step_0", "step_1", "step_2", "step_3"}));
  }
}

// No rank needs to wait: the checkpoint exists once the savers are destroyed.
TEST(AsyncSaverTest, NeedsNoWait) {
  const Folder folder;
  run_ranks(3, [&] {
    StateDict state;
    state.insert("w", at::ones({4}));
    AsyncSaver saver;
    saver.save(folder / "one", {.tensors = &state});
  });
  EXPECT_TRUE(fs::exists(folder / "one/checkpoint.json"));
}

// If a rank cannot write, there is no checkpoint, and all ranks get the error.
TEST(AsyncSaverTest, ReportsAnErrorOnAllRanks) {
  const Folder folder;
  run_ranks(3, [&] {
    StateDict state;
    state.insert("w", at::ones({4, 4}));
    auto extra = CheckpointExtra();
    AsyncSaver saver;
    const auto error = error_of([&] {
      saver.save(folder / "gone/one", {.tensors = &state, .extra = &extra});
      saver.wait();
    });
    const auto own = "[save_checkpoint] cannot make the folder " +
        (folder / "gone/.one.saving") +
        ": No such file or directory. Save again once this is corrected; "
        "earlier checkpoints are unchanged.";
    EXPECT_EQ(
        error,
        get_rank() == 0 ? own
                        : "[save_checkpoint] " + (folder / "gone/one") +
                " was not saved. rank 0: " + own);
    // A later save to an existing folder succeeds.
    saver.save(folder / "one", {.tensors = &state});
    saver.wait();
  });
  EXPECT_EQ(names_in(folder / ""), std::vector<std::string>{"one"});
}

// Limit on the size of all files written during its lifetime.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
};

// If a rank cannot write, the previous checkpoint stays, and all ranks get the
// error.
TEST(AsyncSaverTest, KeepsTheOldCheckpointIfARankCannotWrite) {
  const Folder folder;
  const auto path = folder / "one";
  const auto save = [&](double value, AsyncSaver& saver) {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    StateDict state;
    // The full tensor lies on rank 0.
    state.insert(
        "w",
        distribute_tensor(
            at::full({1, 1 << 20}, value), mesh, {Shard(0)}, std::nullopt));
    state.insert("small", at::full({3}, value));
    saver.save(path, {.tensors = &state}, {.overwrite = true});
    saver.wait();
  };
  const auto load = [&] {
    StateDict state;
    state.insert("w", at::zeros({1, 1 << 20}));
    state.insert("small", at::zeros({3}));
    load_checkpoint(path, {.tensors = &state});
    EXPECT_EQ(state["w"].min().item<double>(), state["w"].max().item<double>());
    EXPECT_EQ(
        state["small"].sum().item<double>(),
        3 * state["w"][0][0].item<double>());
    return state["small"][0].item<double>();
  };
  const auto rank_error = [&](int64_t rank) {
    const auto own = "[save_checkpoint] cannot write " +
        folder.operator/(
            ".one.saving/shard-00001-model-00001-of-00001.safetensors") +
        ": File too large. Save again once this is corrected; earlier "
        "checkpoints are unchanged.";
    return rank == 0
        ? own
        : "[save_checkpoint] " + path + " was not saved. rank 0: " + own;
  };
  run_ranks(2, [&] {
    AsyncSaver saver;
    save(1, saver);
    EXPECT_EQ(load(), 1);
  });
  {
    const FileSizeLimit limit(1 << 20);
    run_ranks(2, [&] {
      AsyncSaver saver;
      EXPECT_EQ(error_of([&] { save(2, saver); }), rank_error(get_rank()));
    });
  }
  run_ranks(2, [&] {
    EXPECT_EQ(load(), 1);
    AsyncSaver saver;
    save(3, saver);
    EXPECT_EQ(load(), 3);
  });
  EXPECT_EQ(names_in(folder / ""), std::vector<std::string>{"one"});
}

// The previous checkpoint also stays if a rank cannot assemble its full file.
// The limit allows each shard file and one of the full files.
TEST(AsyncSaverTest, KeepsTheOldCheckpointIfNoCompleteFileCanBeWritten) {
  const Folder folder;
  const auto path = folder / "one";
  const auto save = [&](double value, bool large_first) {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    StateDict state;
    for (const bool is_large : {large_first, !large_first}) {
      state.insert(
          is_large ? "large" : "small",
          distribute_tensor(
              at::full({2, is_large ? 200'000 : 10}, value),
              mesh,
              {Shard(0)},
              std::nullopt));
    }
    AsyncSaver saver;
    const SaveOptions how{
        .full = true, .max_file_bytes = 1000, .overwrite = true};
    saver.save(path, {.tensors = &state}, how);
    saver.wait();
  };
  const auto load = [&] {
    StateDict state;
    state.insert("large", at::zeros({2, 200'000}));
    load_checkpoint(path, {.tensors = &state}, {.strict = false});
    return state["large"].max().item<double>();
  };
  run_ranks(2, [&] { save(1, true); });
  EXPECT_EQ(names_in(path).size(), 4);
  for (const bool large_first : {true, false}) {
    const FileSizeLimit limit(1 << 20);
    run_ranks(2, [&] {
      const auto error = error_of([&] { save(2, large_first); });
      EXPECT_NE(error.find("File too large"), error.npos) << error;
      EXPECT_NE(error.find("of-00002.safetensors.new"), error.npos) << error;
    });
    EXPECT_EQ(names_in(folder / ""), std::vector<std::string>{"one"});
  }
  EXPECT_EQ(load(), 1);
  run_ranks(2, [&] { save(3, false); });
  EXPECT_EQ(load(), 3);
}

// Two programs save to one path. Each save succeeds or reports that another
// save is in progress, and the final checkpoint is complete and from one of the
// two programs.
TEST(AsyncSaverTest, SharesAPathWithOthers) {
  const Folder folder;
  const auto path = folder / "one";
  std::atomic<int> saves{0};
  const auto program = [&](int number) {
    run_ranks(2, [&] {
      for (int i = 0; i < 40; ++i) {
        StateDict state;
        for (const auto* name : {"a", "b", "c"}) {
          state.insert(name, at::full({3}, number * 1000. + i));
        }
        const auto error = error_of([&] {
          save_checkpoint(
              path,
              {.tensors = &state},
              {.full = i % 2 == 0, .overwrite = true});
        });
        const bool is_told =
            error.find("is in use by another save") != error.npos;
        EXPECT_TRUE(error.empty() || is_told) << error;
        saves += error.empty() ? 1 : 0;
      }
    });
  };
  std::thread other([&] { program(1); });
  program(2);
  other.join();
  EXPECT_GT(saves, 0);
  EXPECT_EQ(names_in(folder / ""), std::vector<std::string>{"one"});
  StateDict state;
  for (const auto* name : {"a", "b", "c"}) {
    state.insert(name, at::zeros({3}));
  }
  load_checkpoint(path, {.tensors = &state});
  EXPECT_GE(state["a"][0].item<double>(), 1000);
  for (const auto& item : state) {
    EXPECT_TRUE(at::equal(item.value(), state["a"]));
  }
}

// A rank throws while all ranks save. The error is reported, visible
// checkpoints are complete, and the next save succeeds.
TEST(AsyncSaverTest, EndsWhereARankThrows) {
  for (const int64_t culprit : {0, 1}) {
    for (const bool is_full : {false, true}) {
      const Folder folder;
      StateDict state;
      state.insert("w", at::full({300, 1000}, 3.));
      const auto error = error_of([&] {
        run_ranks(2, [&] {
          AsyncSaver saver;
          saver.save(folder / "one", {.tensors = &state}, {.full = is_full});
          TORCH_CHECK(get_rank() != culprit, "this rank leaves");
          saver.wait();
        });
      });
      EXPECT_NE(error.find("this rank leaves"), error.npos) << error;
      StateDict loaded;
      loaded.insert("w", at::zeros({300, 1000}));
      if (fs::exists(folder / "one")) {
        load_checkpoint(folder / "one", {.tensors = &loaded});
        EXPECT_TRUE(at::equal(loaded["w"], state["w"]));
      }
      run_ranks(2, [&] {
        save_checkpoint(
            folder / "one", {.tensors = &state}, {.overwrite = true});
      });
      EXPECT_EQ(names_in(folder / ""), std::vector<std::string>{"one"});
    }
  }
}

TEST(AsyncSaverTest, RejectsAnExistingPath) {
  const Folder folder;
  run_ranks(2, [&] {
    StateDict state;
    state.insert("w", at::ones({4}));
    save_checkpoint(folder / "one", {.tensors = &state});
    const auto own = "[save_checkpoint] " + (folder / "one") +
        " already exists. Choose another name, or set overwrite = true.";
    EXPECT_EQ(
        error_of([&] { save_checkpoint(folder / "one", {.tensors = &state}); }),
        get_rank() == 0 ? own
                        : "[save_checkpoint] " + (folder / "one") +
                " was not saved. rank 0: " + own);
  });
}

TEST(AsyncSaverTest, ReplacesAnotherCheckpoint) {
  const Folder folder;
  run_ranks(2, [&] {
    StateDict state;
    state.insert("w", at::zeros({4}));
    for (int64_t i = 0; i < 3; ++i) {
      state["w"].fill_(i);
      save_checkpoint(folder / "one", {.tensors = &state}, {.overwrite = true});
      StateDict loaded;
      loaded.insert("w", at::full({4}, -1.));
      load_checkpoint(folder / "one", {.tensors = &loaded});
      EXPECT_TRUE(at::equal(loaded["w"], at::full({4}, double(i))));
    }
  });
  EXPECT_EQ(names_in(folder / ""), std::vector<std::string>{"one"});
}

TEST(CheckpointFolder, KeepsTheLast) {
  const Folder folder;
  EXPECT_EQ(latest_checkpoint(folder / "none"), std::nullopt);
  run_ranks(2, [&] {
    StateDict state;
    state.insert("w", at::ones({4}));
    for (const auto* name : {"step_9", "step_10", "step_100", "best"}) {
      save_checkpoint(folder / name, {.tensors = &state});
    }
    keep_last(folder / "", 5);
    const auto group = new_group({0, 1}, "both");
    group->barrier();
    EXPECT_EQ(latest_checkpoint(folder / ""), folder / "step_100");
    EXPECT_EQ(names_in(folder / "").size(), 4);
    group->barrier();
    if (get_rank() == 0) {
      fs::create_directory(folder / "step_1000"); // not a checkpoint
      fs::create_directory(folder / ".step_7.saving");
      fs::create_directory(folder / ".step_6.removed");
    }
    keep_last(folder / "", 2);
  });
  EXPECT_EQ(latest_checkpoint(folder / ""), folder / "step_100");
  EXPECT_EQ(
      names_in(folder / ""),
      (std::vector<std::string>{"best", "step_10", "step_100", "step_1000"}));
}

// Folders that are named like checkpoints, or like remains of saves, are kept.
TEST(CheckpointFolder, KeepsWhatSaversHaveNotMade) {
  const Folder folder;
  StateDict state;
  state.insert("w", at::ones({4}));
  for (const auto* name : {"step_1", "step_2"}) {
    save_checkpoint(folder / name, {.tensors = &state});
  }
  const std::vector<std::string> others = {
      "data_1/checkpoint.json",
      "data_2/table.csv",
      ".notes.saving/a.txt",
      ".notes.removed/a.txt",
      ".model.saving/model.bin",
      ".file.saving"};
  for (const auto& name : others) {
    folder.write(name, "{}");
  }
  folder.write(".left.saving/shard-00001-model-00001-of-00001.safetensors", "");
  folder.write(".left.saving/rank-00000.json.new", "");
  save_checkpoint(folder / "left", {.tensors = &state});
  fs::rename(folder / "left", folder / ".left.removed");
  fs::create_directory_symlink("step_2", folder / "step_0");
  keep_last(folder / "", 1);
  EXPECT_FALSE(fs::exists(folder / "step_1"));
  EXPECT_TRUE(fs::exists(folder / "step_0/checkpoint.json"));
  EXPECT_FALSE(fs::exists(folder / ".left.saving"));
  EXPECT_FALSE(fs::exists(folder / ".left.removed"));
  for (const auto& name : others) {
    EXPECT_TRUE(fs::exists(folder / name)) << name;
  }
  // Remains of an interrupted removal do not block the next one.
  save_checkpoint(folder / "step_1", {.tensors = &state});
  folder.write(".step_1.removed/model.safetensors", "");
  keep_last(folder / "", 1);
  EXPECT_FALSE(fs::exists(folder / "step_1"));
  EXPECT_FALSE(fs::exists(folder / ".step_1.removed"));
  // An unrelated folder blocks the removal: the checkpoint stays.
  save_checkpoint(folder / "step_3", {.tensors = &state});
  folder.write(".step_2.removed/a.txt", "text");
  keep_last(folder / "", 1);
  EXPECT_TRUE(fs::exists(folder / "step_2/checkpoint.json"));
  EXPECT_TRUE(fs::exists(folder / ".step_2.removed/a.txt"));
}

TEST(CheckpointFolder, KeepsAtLeastOne) {
  EXPECT_EQ(
      error_of([] { keep_last("run", 0); }),
      "[keep_last] the number of checkpoints must be positive: 0. Keep at "
      "least 1.");
}

} // namespace TEST_SOURCE
} // namespace dtensor
