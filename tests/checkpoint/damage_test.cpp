// SPDX-License-Identifier: BSD-3-Clause
// What became of a checkpoint on disk is told by name, on all ranks.
#include <dtensor/checkpoint/checkpoint.h>
#include <dtensor/deferred/deferred_init.h>
#include <dtensor/weights/checksums_impl.h>
#include <dtensor/weights/weight_file.h>
#include <tests/parallel/modules.h>
#include <tests/weights/files.h>

#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>

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

// What a rank is told; empty: it was loaded.
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

TEST(DamagedCheckpoint, IsNotLoadedWhenItIsCutShort) {
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

TEST(DamagedCheckpoint, SaysWhatIsWrong) {
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
  // The first rank has 20 floats, the last thing in the file.
  EXPECT_EQ(
      load(path),
      "[load_checkpoint] " + shard + ": bytes " +
          std::to_string(whole.size() - 80) + " to " +
          std::to_string(whole.size()) +
          ", of w, are not those that were saved. Load an older checkpoint.");
  EXPECT_EQ(load(path, {.verify = false}), "");
  put(shard, whole.substr(0, at));
  EXPECT_EQ(
      load(path),
      "[load_checkpoint] " + shard + " has " + std::to_string(at) +
          " bytes, and had " + std::to_string(at + 1) +
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
          " has another header than was saved. Load an older checkpoint.");
  put(shard, whole);
  put(files[0], "{}");
  EXPECT_EQ(
      load(path),
      "[load_checkpoint] " + files[0] +
          " is not as it was saved. Load an older checkpoint.");
}

// A block is checked by one rank, and all are told.
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
      EXPECT_NE(error.find("are not those that were saved"), std::string::npos)
          << error;
      EXPECT_NE(error.find(file), std::string::npos) << error;
    });
  }
}

// Whatever bytes are not those that were saved, what was to be filled is as it
// was: tensors of the program, of the optimizer, of the meta device, options.
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

// Of an optimizer of another kind, or in other groups.
TEST(CheckpointErrors, OfOptimizersChangeNothing) {
  const Folder folder;
  auto model = filled(Mlp(6, 7));
  torch::optim::SGD sgd(
      model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  model(uniform({4, 6}, 3)).pow(2).mean().backward();
  sgd.step();
  const CheckpointState state{.model = model.get(), .optimizer = &sgd};
  save_checkpoint(folder / "sgd", state);
  const auto before = model->w1->weight.detach().clone();
  {
    const at::NoGradGuard no_grad;
    model->w1->weight.add_(1);
  }
  torch::optim::Adagrad adagrad(model->parameters(), 0.2);
  const auto error = error_of([&] {
    load_checkpoint(
        folder / "sgd", {.model = model.get(), .optimizer = &adagrad});
  });
  EXPECT_NE(error.find("optimizer.param_groups.w1.bias.lr_decay"), error.npos)
      << error;
  EXPECT_TRUE(at::equal(model->w1->weight, before + 1));
  // Two rates in one group.
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (auto& parameter : model->parameters()) {
    groups.emplace_back(std::vector<at::Tensor>{parameter});
  }
  torch::optim::SGD apart(groups, torch::optim::SGDOptions(0.1));
  apart.param_groups()[2].options().set_lr(0.3);
  save_checkpoint(
      folder / "apart", {.model = model.get(), .optimizer = &apart});
  EXPECT_EQ(
      error_of([&] { load_checkpoint(folder / "apart", state); }),
      "[set_optimizer_state_dict] parameters of one group have different "
      "options: param_groups.w1.weight.lr is 0.1, param_groups.w2.weight.lr is "
      "0.3. Give each its own group, as where the state is from.");
  EXPECT_EQ(sgd.param_groups()[0].options().get_lr(), 0.1);
  EXPECT_TRUE(sgd.state().size() == 4);
}

TEST(CheckpointErrors, ListNamesAndShapesAndChangeNothing) {
  const Folder folder;
  const auto path = folder / "one";
  StateDict state;
  state.insert("w1.weight", at::ones({8, 6}));
  state.insert("w1.bias", at::ones({7}));
  state.insert("w3.weight", at::ones({2}));
  save_checkpoint(path, {.tensors = &state});
  auto model = filled(Mlp(6, 8));
  const auto before = model->w1->weight.detach().clone();
  EXPECT_EQ(
      error_of([&] { load_checkpoint(path, {.model = model.get()}); }),
      "[load_checkpoint] not in the checkpoint: w2.weight, w2.bias; not in the "
      "model: w3.weight; of another shape: w1.bias is f32[7] for f64[8]. Load "
      "it into such a model, or, with strict = false, what fits.");
  EXPECT_TRUE(at::equal(model->w1->weight, before));
  EXPECT_EQ(
      error_of([&] {
        load_checkpoint(path, {.model = model.get()}, {.strict = false});
      }),
      "[load_checkpoint] of another shape: w1.bias is f32[7] for f64[8]. Load "
      "it into such a model, or, with strict = false, what fits.");
}

TEST(CheckpointErrors, OfWhatCannotBeSaved) {
  const Folder folder;
  const auto path = folder / "one";
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto error = [&](const at::Tensor& value) {
      StateDict state;
      state.insert("w", value);
      return error_of([&] { save_checkpoint(path, {.tensors = &state}); });
    };
    EXPECT_EQ(
        error(DTensor::from_local(at::ones({3}), mesh, {Partial()})),
        "[save_checkpoint] w is f32[3] on (2): P(sum), a sum of which no rank "
        "has a part. Redistribute it first.");
    EXPECT_EQ(
        error(at::ones({3}, at::kComplexDouble)),
        "[save_checkpoint] w is c128[3], a dtype that safetensors does not "
        "have. Save view_as_real() of it, or convert it first.");
    EXPECT_EQ(
        error(at::ones({3}, at::TensorOptions(at::kMeta))),
        "[save_checkpoint] w is on the meta device, and has no values. "
        "Materialize it first.");
    EXPECT_EQ(
        error(at::Tensor()),
        "[save_checkpoint] w is undefined, and has no values. Materialize it "
        "first.");
    const auto rank = get_rank();
    EXPECT_EQ(
        error(at::ones({3 + rank})),
        "[save_checkpoint] ranks do not pass the same: rank 0 has w f32[3] on "
        "mesh 0, rank 1 has w f32[4] on mesh 0. Pass the same names in the "
        "same layouts on all ranks.");
    // What one rank finds, the other is told.
    const auto own =
        "[save_checkpoint] w is c128[3], a dtype that safetensors does not "
        "have. Save view_as_real() of it, or convert it first.";
    EXPECT_EQ(
        error(at::ones({3}, rank == 1 ? at::kComplexDouble : at::kFloat)),
        rank == 1
            ? own
            : "[save_checkpoint] " + path + " was not saved. rank 1: " + own);
  });
  EXPECT_FALSE(fs::exists(path));
  EXPECT_TRUE(fs::is_empty(folder / ""));
}

TEST(CheckpointErrors, OfNames) {
  const Folder folder;
  const auto path = folder / "one";
  auto model = filled(Mlp(6, 8));
  StateDict twice;
  twice.insert("w1.bias", at::ones({3}));
  EXPECT_EQ(
      error_of([&] {
        save_checkpoint(path, {.model = model.get(), .tensors = &twice});
      }),
      "[save_checkpoint] two tensors are called w1.bias. Rename one.");
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  EXPECT_EQ(
      error_of([&] { save_checkpoint(path, {.optimizer = &optimizer}); }),
      "[save_checkpoint] an optimizer without its model, whose names it needs. "
      "Pass both.");
  EXPECT_EQ(
      error_of([&] { load_checkpoint(path, {.optimizer = &optimizer}); }),
      "[load_checkpoint] an optimizer without its model, whose names it needs. "
      "Pass both.");
  CheckpointExtra extra = {{"text", std::string("\xff\xfe")}};
  EXPECT_EQ(
      error_of([&] { save_checkpoint(path, {.extra = &extra}); }),
      "[save_checkpoint] a text of `extra` is no UTF-8. Save bytes as a "
      "tensor.");
}

TEST(CheckpointErrors, OfNamesThatNoFileHas) {
  const Folder folder;
  const auto error = [&](const std::string& name) {
    StateDict state;
    state.insert(name, at::ones({3}));
    return error_of(
        [&] { save_checkpoint(folder / "one", {.tensors = &state}); });
  };
  const auto end =
      " cannot be the name of a tensor in a file. Choose another one, in "
      "UTF-8.";
  EXPECT_EQ(
      error("__metadata__"),
      std::string("[save_checkpoint] \"__metadata__\"") + end);
  EXPECT_EQ(
      error("a\xff"), std::string(R"([save_checkpoint] "a\ufffd")") + end);
  EXPECT_TRUE(std::filesystem::is_empty(folder / ""));
}

// All others are.
TEST(Checkpoint, TakesAnyName) {
  const Folder folder;
  const std::vector<std::string> names = {
      "", "/", "../a", "a b", "\"", "\\", "\n", "\x01", "größe", "重み", "."};
  StateDict state;
  for (size_t i = 0; i < names.size(); ++i) {
    state.insert(names[i], at::full({3}, static_cast<double>(i)));
  }
  for (const bool full : {false, true}) {
    const auto path = folder / (full ? "full" : "parts");
    save_checkpoint(path, {.tensors = &state}, {.full = full});
    StateDict loaded;
    for (const auto& name : names) {
      loaded.insert(name, at::zeros({3}));
    }
    load_checkpoint(path, {.tensors = &loaded});
    for (const auto& name : names) {
      EXPECT_TRUE(at::equal(loaded[name], state[name])) << name;
    }
  }
}

TEST(CheckpointErrors, OfPaths) {
  const Folder folder;
  StateDict state;
  state.insert("w", at::ones({3}));
  const auto error = [&](const std::string& path, bool overwrite = false) {
    return error_of([&] {
      save_checkpoint(path, {.tensors = &state}, {.overwrite = overwrite});
    });
  };
  EXPECT_EQ(
      error(""),
      "[save_checkpoint] an empty path. Say what the folder is to be called.");
  // A link to nothing, and a file, are there too.
  fs::create_symlink("nothing", folder / "link");
  folder.write("file", "text");
  for (const auto* name : {"link", "file"}) {
    EXPECT_EQ(
        error(folder / name),
        "[save_checkpoint] " + (folder / name) +
            " is there already. Choose another name, or overwrite = true.");
  }
  EXPECT_EQ(error(folder / "file", true), "");
  // A path that cannot be looked at.
  fs::create_symlink("loop", folder / "loop");
  const auto text = error_of(
      [&] { load_checkpoint(folder / "loop/one", {.tensors = &state}); });
  EXPECT_EQ(text.substr(0, 17), "[load_checkpoint]") << text;
  EXPECT_NE(text.find(folder / "loop/one"), std::string::npos) << text;
}

// The link goes on to mean what it did, or is replaced; what it is a link to
// stays.
TEST(Checkpoint, IsSavedAndReadByALink) {
  const Folder folder;
  StateDict state;
  state.insert("w", at::ones({3}));
  save_checkpoint(folder / "step_1", {.tensors = &state});
  fs::create_directory_symlink("step_1", folder / "last");
  state["w"].fill_(2);
  load_checkpoint(folder / "last", {.tensors = &state});
  EXPECT_TRUE(at::equal(state["w"], at::ones({3})));
  state["w"].fill_(2);
  save_checkpoint(folder / "last", {.tensors = &state}, {.overwrite = true});
  load_checkpoint(folder / "step_1", {.tensors = &state});
  EXPECT_TRUE(at::equal(state["w"], at::ones({3})));
  load_checkpoint(folder / "last", {.tensors = &state});
  EXPECT_TRUE(at::equal(state["w"], at::full({3}, 2.)));
  EXPECT_EQ(files_of(folder / "").size(), 2);
}

// What somebody has copied there is not read, be it called as a model is.
TEST(Checkpoint, IsTheFilesThatItWasSavedWith) {
  const Folder folder;
  StateDict state;
  state.insert("w", at::ones({3}));
  save_checkpoint(folder / "one", {.tensors = &state});
  const auto other = test_weights::safetensors_of({{"w", at::zeros({3})}});
  for (const auto* name : {"model.safetensors", "shard-7.safetensors"}) {
    folder.write("one/" + std::string(name), other);
    state["w"].fill_(2);
    load_checkpoint(folder / "one", {.tensors = &state});
    EXPECT_TRUE(at::equal(state["w"], at::ones({3}))) << name;
  }
}

TEST(CheckpointErrors, OfAnotherVersion) {
  const Folder folder;
  save(folder / "one");
  const auto path = folder / "one/checkpoint.json";
  auto manifest = nlohmann::json::parse(text_of(path));
  manifest["version"] = 2;
  manifest.erase("checksum");
  const auto text = manifest.dump();
  manifest["checksum"] =
      detail::checksum_text({detail::checksum_of(text.data(), text.size())});
  put(path, manifest.dump());
  EXPECT_EQ(
      load(folder / "one"),
      "[load_checkpoint] " + path +
          " is of version 2. This library reads version 1.");
}

TEST(CheckpointErrors, OfComplexValuesForRealOnes) {
  const Folder folder;
  StateDict state;
  state.insert("w", at::ones({3}, at::kComplexFloat));
  save_checkpoint(folder / "one", {.tensors = &state});
  StateDict real;
  real.insert("w", at::zeros({3}));
  EXPECT_EQ(
      error_of([&] { load_checkpoint(folder / "one", {.tensors = &real}); }),
      "[load_checkpoint] complex for what is real: w. Load it into such a "
      "model, or, with strict = false, what fits.");
}

// Ranks that look at folders of several machines, say.
TEST(CheckpointErrors, OfRanksThatSeeOthers) {
  const Folder folder;
  save(folder / "one");
  save(folder / "two");
  run_ranks(2, [&] {
    auto state = state_on(init_device_mesh(at::kCPU, {2}));
    const auto path = folder / (get_rank() == 0 ? "one" : "two");
    const auto error =
        error_of([&] { load_checkpoint(path, {.tensors = &state}); });
    const auto begin =
        "[load_checkpoint] ranks do not pass the same: rank 0 has " +
        (folder / "one") + " of ";
    EXPECT_EQ(error.substr(0, begin.size()), begin) << error;
  });
}

// Ranks that differ in how they load, or save, would wait for each other.
TEST(CheckpointErrors, OfOptionsThatDiffer) {
  const Folder folder;
  save(folder / "one");
  run_ranks(2, [&] {
    auto state = state_on(init_device_mesh(at::kCPU, {2}));
    EXPECT_EQ(
        error_of([&] {
          load_checkpoint(
              folder / "one",
              {.tensors = &state},
              {.share_reading = get_rank() == 0});
        }),
        "[load_checkpoint] ranks do not pass the same: rank 0 has "
        "share_reading, rank 1 has no share_reading. Pass the same names in "
        "the same layouts on all ranks.");
    const auto path = folder / "two";
    EXPECT_EQ(
        error_of([&] {
          save_checkpoint(
              path,
              {.tensors = &state},
              {.full = true, .max_file_bytes = 5 + get_rank()});
        }),
        "[save_checkpoint] ranks do not pass the same: rank 0 has " + path +
            " in full, 5 bytes a file, rank 1 has " + path +
            " in full, 6 bytes a file. Pass the same names in the same layouts "
            "on all ranks.");
  });
}

TEST(CheckpointErrors, OfAGroupThatIsTooSmall) {
  const Folder folder;
  save(folder / "whole");
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    StateDict state = state_on(mesh);
    if (get_rank() == 0) {
      EXPECT_EQ(
          error_of([&] {
            load_checkpoint(
                folder / "whole",
                {.tensors = &state},
                {.group = new_group({0}, "alone")});
          }),
          "[load_checkpoint] w lies on rank 1 too, which is not in the group "
          "that loads. Pass a group with all ranks of its mesh.");
      EXPECT_EQ(
          error_of([&] {
            save_checkpoint(
                folder / "one",
                {.tensors = &state},
                {.group = new_group({0}, "alone")});
          }),
          "[save_checkpoint] w lies on rank 1 too, which is not in the group "
          "that saves. Pass a group with all ranks of its mesh.");
    }
  });
}

// The pieces of files that others have cut.
TEST(CheckpointErrors, OfPieces) {
  const Folder folder;
  const auto piece = [&](const std::string& name, const std::string& offset) {
    folder.write(
        name + ".safetensors",
        test_weights::safetensors_of(
            R"({"__metadata__":{"DCP_SHARDING_INFO":"{\"w\":{\"saved_offsets\":)" +
                offset +
                R"(}}"},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
            std::string(8, '\0')));
  };
  const auto path = folder / "";
  const auto end =
      ". Give a safetensors file, the index of several, a GGUF file, or an "
      "exported program.";
  const auto error = [&] { return error_of([&] { open_weights(path); }); };
  EXPECT_EQ(
      error(),
      "[open_weights] " + path + ": a folder without files of safetensors" +
          end);
  piece("a", "[0]");
  EXPECT_EQ(error(), "");
  piece("b", "[3]");
  EXPECT_EQ(
      error(),
      "[open_weights] " + path +
          ": the weight w is f32[5], and its pieces hold 4 of 5 elements: "
          "files are missing" +
          end);
  piece("b", "[1]");
  EXPECT_EQ(
      error(),
      "[open_weights] " + path + ": the weight w has pieces that overlap" +
          end);
  piece("b", "[1,0]");
  EXPECT_EQ(
      error(),
      "[open_weights] " + (folder / "b.safetensors") +
          ": the weight w has not as many offsets as sizes" + end);
  piece("b", "[-1]");
  EXPECT_EQ(
      error(),
      "[open_weights] " + (folder / "b.safetensors") + ": no offset of w: -1" +
          end);
  piece("b", "[2]");
  // That bytes do not lie at multiples of four is no error.
  EXPECT_TRUE(at::equal(open_weights(path)->read("w"), at::zeros({4})));
}

} // namespace TEST_SOURCE
} // namespace dtensor
