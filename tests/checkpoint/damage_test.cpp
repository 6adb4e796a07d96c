// SPDX-License-Identifier: BSD-3-Clause
// Damage to a checkpoint on disk is reported with the file's name, on all
// ranks.
#include <dtensor/checkpoint/checkpoint.h>
#include <dtensor/deferred/deferred_init.h>
#include <tests/parallel/modules.h>
#include <tests/weights/files.h>

#include <filesystem>
#include <fstream>
#include <random>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test_modules;
using test_weights::Folder;
namespace fs = std::filesystem;

StateDict state_on(const DeviceMesh& mesh) {
  StateDict state;
  state.insert(
      "w",
      distribute_tensor(
          at::arange(40.).view({8, 5}), mesh, {Shard(0)}, std::nullopt));
  state.insert("plain", at::arange(3));
  return state;
}

void save(const std::string& path) {
  run_ranks(2, [&] {
    auto state = state_on(init_device_mesh(at::kCPU, {2}));
    CheckpointExtra extra = {{"step", 3}, {"name", "a run"}};
    save_checkpoint(path, {.tensors = &state, .extra = &extra});
  });
}

// Returns the error of a load; "" if it succeeded.
std::string load(const std::string& path, const LoadOptions& options = {}) {
  auto state = state_on(init_device_mesh(at::kCPU, {1}));
  CheckpointExtra extra;
  return error_of([&] {
    load_checkpoint(path, {.tensors = &state, .extra = &extra}, options);
  });
}

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void put(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::vector<std::string> files_of(const std::string& path) {
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(path)) {
    files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

TEST(DamagedCheckpoint, IsNotLoadedWithAFlippedBit) {
  const Folder folder;
  save(folder / "one");
  ASSERT_EQ(load(folder / "one"), "");
  ASSERT_EQ(files_of(folder / "one").size(), 3);
  for (const auto& file : files_of(folder / "one")) {
    const auto whole = text_of(file);
    for (size_t i = 0; i < whole.size(); ++i) {
      auto flipped = whole;
      flipped[i] = static_cast<char>(flipped[i] ^ 1);
      put(file, flipped);
      const auto error = load(folder / "one");
      ASSERT_NE(error.find(file), std::string::npos)
          << "byte " << i << " of " << file << ": " << error;
    }
    put(file, whole);
  }
  EXPECT_EQ(load(folder / "one"), "");
}

TEST(DamagedCheckpoint, IsNotLoadedWhenTruncated) {
  const Folder folder;
  save(folder / "one");
  for (const auto& file : files_of(folder / "one")) {
    const auto whole = text_of(file);
    for (size_t size = 0; size < whole.size(); size += 7) {
      put(file, whole.substr(0, size));
      const auto error = load(folder / "one");
      ASSERT_NE(error.find(file), std::string::npos) << size << ": " << error;
    }
    put(file, whole);
  }
}

TEST(DamagedCheckpoint, ReportsTheDamage) {
  const Folder folder;
  const auto path = folder / "one";
  save(path);
  const auto files = files_of(path);
  const auto& shard = files[1];
  const auto whole = text_of(shard);
  const auto at = whole.size() - 1;
  auto flipped = whole;
  flipped[at] = static_cast<char>(flipped[at] ^ 64);
  put(shard, flipped);
  // The first rank's shard has 20 floats, at the end of the file.
  EXPECT_EQ(
      load(path),
      "[load_checkpoint] " + shard + ": checksum mismatch in bytes " +
          std::to_string(whole.size() - 80) + " to " +
          std::to_string(whole.size()) + ", of w. Load an older checkpoint.");
  EXPECT_EQ(load(path, {.verify = false}), "");
  put(shard, whole.substr(0, at));
  EXPECT_EQ(
      load(path),
      "[load_checkpoint] " + shard + " has " + std::to_string(at) +
          " bytes, but had " + std::to_string(at + 1) +
          " when it was saved. Load an older checkpoint.");
  fs::remove(shard);
  EXPECT_EQ(
      load(path),
      "[load_checkpoint] " + shard +
          " cannot be read: No such file or directory. Load an older "
          "checkpoint.");
  put(shard, whole);
  flipped = whole;
  flipped[20] = static_cast<char>(flipped[20] ^ 1);
  put(shard, flipped);
  EXPECT_EQ(
      load(path),
      "[load_checkpoint] " + shard +
          " has a different header than was saved. Load an older checkpoint.");
  put(shard, whole);
  put(files[0], "{}");
  EXPECT_EQ(
      load(path),
      "[load_checkpoint] " + files[0] +
          ": \"checksum\" is missing. Load an older checkpoint.");
  put(files[0], R"({"checksum": "0"})");
  EXPECT_EQ(
      load(path),
      "[load_checkpoint] " + files[0] +
          " was modified: its checksum does not match. Load an older "
          "checkpoint.");
}

// A block is verified by one rank, and all ranks get the error.
TEST(DamagedCheckpoint, IsAnErrorOfAllRanks) {
  const Folder folder;
  const auto path = folder / "one";
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    StateDict state;
    state.insert(
        "w",
        distribute_tensor(
            at::zeros({1024, 1024}), mesh, {Shard(0)}, std::nullopt));
    save_checkpoint(path, {.tensors = &state});
  });
  const auto file = files_of(path).back();
  auto bytes = text_of(file);
  bytes[bytes.size() - 5] = 1;
  put(file, bytes);
  for (const Placement& layout : {Shard(0), Shard(1), Replicate()}) {
    run_ranks(3, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {3});
      StateDict state;
      state.insert(
          "w",
          distribute_tensor(
              at::ones({1024, 1024}), mesh, {layout}, std::nullopt));
      const auto error =
          error_of([&] { load_checkpoint(path, {.tensors = &state}); });
      EXPECT_NE(error.find("checksum mismatch in bytes "), std::string::npos)
          << error;
      EXPECT_NE(error.find(file), std::string::npos) << error;
    });
  }
}

// Damaged bytes leave all targets unchanged: tensors of the program, of the
// optimizer and on the meta device, and options.
TEST(DamagedCheckpoint, ChangesNothing) {
  const Folder folder;
  const auto path = folder / "one";
  const auto train = [](Mlp& model, torch::optim::AdamW& optimizer) {
    model(uniform({4, 6}, 3)).pow(2).mean().backward();
    optimizer.step();
  };
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto model = filled(Mlp(6, 7));
    parallelize_module(*model, mesh, mlp_plan());
    torch::optim::AdamW optimizer(model->parameters(), 0.5);
    train(model, optimizer);
    CheckpointExtra extra = {{"step", 3}, {"seen", at::arange(5)}};
    save_checkpoint(
        path, {.model = model.get(), .optimizer = &optimizer, .extra = &extra});
  });
  int damaged = 0;
  for (const auto& file : files_of(path)) {
    const auto whole = text_of(file);
    const auto header = file.ends_with(".json") ? 0 : 4096;
    for (size_t i = 0; i < whole.size(); i += whole.size() / 13) {
      auto flipped = whole;
      flipped[i] = static_cast<char>(flipped[i] ^ 8);
      put(file, flipped);
      damaged += static_cast<int>(i) >= header ? 1 : 0;
      run_ranks(3, [&] {
        const auto mesh = init_device_mesh(at::kCPU, {3}, {"tp"});
        auto model = filled(Mlp(6, 7), 50);
        parallelize_module(*model, mesh, mlp_plan());
        torch::optim::AdamW optimizer(model->parameters(), 0.25);
        train(model, optimizer);
        CheckpointExtra extra = {{"step", 1}, {"seen", at::zeros({5})}};
        const CheckpointState state{
            .model = model.get(), .optimizer = &optimizer, .extra = &extra};
        StateDict before;
        const auto add = [&](const StateDict& tensors, StateDict& to) {
          for (const auto& item : tensors) {
            to.insert(item.key(), full(item.value()).clone());
          }
        };
        add(get_model_state_dict(*model), before);
        add(get_optimizer_state_dict(*model, optimizer), before);
        const auto error = error_of([&] { load_checkpoint(path, state); });
        EXPECT_NE(error.find(file), std::string::npos) << i << error;
        StateDict after;
        add(get_model_state_dict(*model), after);
        add(get_optimizer_state_dict(*model, optimizer), after);
        EXPECT_EQ(after.keys(), before.keys());
        for (const auto& item : before) {
          EXPECT_TRUE(at::equal(after[item.key()], item.value()))
              << item.key() << " byte " << i << " of " << file;
        }
        EXPECT_EQ(std::get<int64_t>(extra.at("step")), 1);
        EXPECT_TRUE(
            at::equal(std::get<at::Tensor>(extra.at("seen")), at::zeros({5})));
      });
    }
    put(file, whole);
  }
  EXPECT_GT(damaged, 20);
}

TEST(DamagedCheckpoint, LeavesADeferredModelWithoutMemory) {
  const Folder folder;
  const auto path = folder / "one";
  auto truth = filled(Mlp(6, 7));
  save_checkpoint(path, {.model = truth.get()});
  const auto file = files_of(path).back();
  auto bytes = text_of(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  put(file, bytes);
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    Mlp model{nullptr};
    {
      const DeferredInit scope;
      model = Mlp(6, 7);
      model->to(at::kDouble);
    }
    parallelize_module(*model, mesh, mlp_plan());
    EXPECT_NE(
        error_of([&] { load_checkpoint(path, {.model = model.get()}); }), "");
    for (const auto& parameter : model->parameters()) {
      EXPECT_TRUE(is_deferred(parameter));
    }
    load_checkpoint(path, {.model = model.get()}, {.verify = false});
    EXPECT_FALSE(is_deferred(model->w1->weight));
  });
}

// Returns `text` with bytes changed, removed or inserted.
std::string damaged(std::string text, std::mt19937& random) {
  for (int i = 0; i < 3; ++i) {
    const auto at = random() % text.size();
    switch (random() % 4) {
      case 0:
        text.erase(at, 1 + random() % 8);
        break;
      case 1:
        text.insert(at, 1 + random() % 8, "09]}[{,\""[random() % 8]);
        break;
      default:
        text[at] = static_cast<char>(random());
    }
  }
  return text;
}

// Loads damaged headers and indexes without a checkpoint.json that could detect
// the damage. The load must succeed or throw an error with a prefix.
void expect_errors_at_most(uint32_t first, uint32_t last) {
  const Folder folder;
  run_ranks(2, [&] {
    auto state = state_on(init_device_mesh(at::kCPU, {2}));
    save_checkpoint(folder / "parts", {.tensors = &state});
    save_checkpoint(
        folder / "full",
        {.tensors = &state},
        {.full = true, .max_file_bytes = 100});
  });
  int errors = 0;
  for (const auto* name : {"parts", "full"}) {
    const auto path = folder / name;
    fs::remove(path + "/checkpoint.json");
    for (const auto& file : files_of(path)) {
      const auto whole = text_of(file);
      for (auto seed = first; seed < last; ++seed) {
        std::mt19937 random(seed);
        put(file, damaged(whole, random));
        try {
          auto state = state_on(init_device_mesh(at::kCPU, {1}));
          load_checkpoint(path, {.tensors = &state});
        } catch (const c10::Error& error) {
          const std::string text = error.what_without_backtrace();
          EXPECT_EQ(
              text.rfind("[load_checkpoint]", 0) == 0 ||
                  text.rfind("[open_weights]", 0) == 0,
              true)
              << text << " of seed " << seed;
          ++errors;
        }
      }
      put(file, whole);
    }
  }
  EXPECT_GT(errors, 3 * static_cast<int>(last - first));
}

TEST(DamagedCheckpoint, IsAnErrorAtMost) {
  expect_errors_at_most(0, 100);
}
TEST(SlowDamagedCheckpoint, IsAnErrorAtMost) {
  expect_errors_at_most(100, 3000);
}

} // namespace TEST_SOURCE
} // namespace dtensor
