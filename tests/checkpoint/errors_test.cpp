// SPDX-License-Identifier: BSD-3-Clause
// Invalid saves and loads throw on all ranks and change nothing.
#include <dtensor/checkpoint/checkpoint.h>
#include <dtensor/checkpoint/files_impl.h>
#include <dtensor/checkpoint/manifest_impl.h>
#include <dtensor/weights/checksums_impl.h>
#include <dtensor/weights/weight_file.h>
#include <tests/parallel/modules.h>
#include <tests/weights/files.h>

#include <nlohmann/json.hpp>

#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

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

// A sparse file takes no space on disk. Its header must not be read to memory.
TEST(CheckpointErrors, OfAHeaderOfTerabytes) {
  constexpr uint64_t kBytes = uint64_t{1} << 42;
  const Folder folder;
  const auto path = folder / "step";
  fs::create_directory(path);
  std::string length(8, '\0');
  const auto header = kBytes - length.size();
  std::memcpy(length.data(), &header, length.size());
  put(path + "/a", length);
  std::error_code error;
  fs::resize_file(path + "/a", kBytes, error);
  if (error) {
    GTEST_SKIP() << "no sparse files: " << error.message();
  }
  put(path + "/checkpoint.json",
      detail::manifest_text(1, detail::extra_text({}), {{"a", {kBytes, 1}}}));
  EXPECT_EQ(
      load(path),
      "[load_checkpoint] " + path +
          "/a has a different header than was saved. Load an older "
          "checkpoint.");
}

// A checkpoint.json of any size must not be read to memory either.
TEST(CheckpointErrors, OfAListOfTerabytes) {
  const Folder folder;
  const auto path = folder / "step";
  fs::create_directory(path);
  put(path + "/checkpoint.json", "{}");
  std::error_code error;
  fs::resize_file(path + "/checkpoint.json", uint64_t{1} << 42, error);
  if (error) {
    GTEST_SKIP() << "no sparse files: " << error.message();
  }
  EXPECT_EQ(
      load(path),
      "[load_checkpoint] " + path +
          "/checkpoint.json cannot be read: it has more than 100000000 bytes. "
          "Load an older checkpoint.");
}

TEST(CheckpointErrors, OfTensorsThatHaveNoMemoryOfTheirOwn) {
  const Folder folder;
  const auto path = folder / "one";
  StateDict state;
  state.insert("v", at::ones({3}));
  state.insert("w", at::ones({3, 3}));
  save_checkpoint(path, {.tensors = &state});
  const auto error = [&](const at::Tensor& target) {
    StateDict targets;
    targets.insert("v", at::zeros({3}));
    targets.insert("w", target);
    auto text = error_of([&] { load_checkpoint(path, {.tensors = &targets}); });
    EXPECT_TRUE(at::equal(targets["v"], at::zeros({3})));
    return text;
  };
  EXPECT_EQ(
      error(at::zeros({3}).expand({3, 3})),
      "[load_checkpoint] \"w\" has elements that share memory, such as an "
      "expanded view. Give it memory of its own first.");
  EXPECT_EQ(
      error(at::zeros({3, 3}).to_sparse()),
      "[load_checkpoint] \"w\" is sparse. Give it memory of its own first.");
  StateDict sparse;
  sparse.insert("w", at::ones({3, 3}).to_sparse());
  EXPECT_EQ(
      error_of([&] { save_checkpoint(folder / "two", {.tensors = &sparse}); }),
      "[save_checkpoint] \"w\" is sparse, which safetensors does not support. "
      "Make it dense, or save its indices and values.");
}

// A checkpoint of another kind of optimizer, or of other parameter groups, is
// refused.
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
  // Two learning rates for the parameters of one group.
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
      "options: param_groups.w1.weight.lr is 0.1, param_groups.w2.weight.lr "
      "is 0.3. Put them into separate groups, as in the optimizer that saved "
      "the state.");
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
      "model: w3.weight; of another shape: w1.bias is f32[7] for f64[8]. "
      "Load it into a matching model, or load what matches with strict = "
      "false.");
  EXPECT_TRUE(at::equal(model->w1->weight, before));
  EXPECT_EQ(
      error_of([&] {
        load_checkpoint(path, {.model = model.get()}, {.strict = false});
      }),
      "[load_checkpoint] of another shape: w1.bias is f32[7] for f64[8]. "
      "Load it into a matching model, or load what matches with strict = "
      "false.");
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
        "[save_checkpoint] cannot save a Partial tensor: \"w\" is f32[3] on "
        "(2): P(sum). Redistribute it first.");
    EXPECT_EQ(
        error(at::ones({3}, at::kComplexDouble)),
        "[save_checkpoint] \"w\" is c128[3], a dtype that safetensors does not "
        "support. Save view_as_real() of it, or convert it first.");
    EXPECT_EQ(
        error(at::ones({3}, at::TensorOptions(at::kMeta))),
        "[save_checkpoint] \"w\" is on the meta device, and has no values. "
        "Materialize it first.");
    EXPECT_EQ(
        error(at::Tensor()),
        "[save_checkpoint] \"w\" is undefined, and has no values. Materialize "
        "it first.");
    const auto rank = get_rank();
    EXPECT_EQ(
        error(at::ones({3 + rank})),
        "[save_checkpoint] arguments differ between ranks: rank 0 has \"w\" "
        "f32[3] on mesh 0, rank 1 has \"w\" f32[4] on mesh 0. Pass the same "
        "names in the same layouts on all ranks.");
    // An error on one rank is reported on the other.
    const auto own =
        "[save_checkpoint] \"w\" is c128[3], a dtype that safetensors does not "
        "support. Save view_as_real() of it, or convert it first.";
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
      "[save_checkpoint] two tensors are named \"w1.bias\". Rename one.");
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  EXPECT_EQ(
      error_of([&] { save_checkpoint(path, {.optimizer = &optimizer}); }),
      "[save_checkpoint] `optimizer` is set but `model` is not. Pass both.");
  EXPECT_EQ(
      error_of([&] { load_checkpoint(path, {.optimizer = &optimizer}); }),
      "[load_checkpoint] `optimizer` is set but `model` is not. Pass both.");
  CheckpointExtra extra = {{"text", std::string("\xff\xfe")}};
  EXPECT_EQ(
      error_of([&] { save_checkpoint(path, {.extra = &extra}); }),
      "[save_checkpoint] a string in `extra` is not valid UTF-8. Save bytes as "
      "a tensor.");
}

TEST(CheckpointErrors, OfInvalidTensorNames) {
  const Folder folder;
  const auto error = [&](const std::string& name) {
    StateDict state;
    state.insert(name, at::ones({3}));
    return error_of(
        [&] { save_checkpoint(folder / "one", {.tensors = &state}); });
  };
  const auto end =
      " cannot be the name of a tensor in a file. Choose another name, in "
      "UTF-8.";
  EXPECT_EQ(
      error("__metadata__"),
      std::string("[save_checkpoint] \"__metadata__\"") + end);
  EXPECT_EQ(
      error("a\xff"), std::string(R"([save_checkpoint] "a\ufffd")") + end);
  EXPECT_TRUE(std::filesystem::is_empty(folder / ""));
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
      "[save_checkpoint] the path is empty. Pass the name of the checkpoint "
      "folder.");
  // A dangling link and a file count as existing.
  fs::create_symlink("nothing", folder / "link");
  folder.write("file", "text");
  for (const auto* name : {"link", "file"}) {
    EXPECT_EQ(
        error(folder / name),
        "[save_checkpoint] " + (folder / name) +
            " already exists. Choose another name, or set overwrite = true.");
  }
  for (const auto* name : {"link", "file"}) {
    EXPECT_EQ(
        error(folder / name, true),
        "[save_checkpoint] " + (folder / name) +
            " exists and is not a checkpoint. Choose another name, or move "
            "it.");
  }
  EXPECT_EQ(text_of(folder / "file"), "text");
  // A path that cannot be resolved.
  fs::create_symlink("loop", folder / "loop");
  const auto text = error_of(
      [&] { load_checkpoint(folder / "loop/one", {.tensors = &state}); });
  EXPECT_EQ(text.substr(0, 17), "[load_checkpoint]") << text;
  EXPECT_NE(text.find(folder / "loop/one"), std::string::npos) << text;
}

// Changes the manifest and its checksum, as another version of the library
// might have written it.
template <class Fn>
void change_manifest(const std::string& path, const Fn& change) {
  auto manifest = nlohmann::json::parse(text_of(path));
  change(manifest);
  manifest.erase("checksum");
  const auto text = manifest.dump();
  manifest["checksum"] =
      detail::checksum_text({detail::checksum_of(text.data(), text.size())});
  put(path, manifest.dump());
}

TEST(CheckpointErrors, OfAnotherVersion) {
  const Folder folder;
  save(folder / "one");
  const auto path = folder / "one/checkpoint.json";
  change_manifest(path, [](auto& manifest) { manifest["version"] = 2; });
  EXPECT_EQ(
      load(folder / "one"),
      "[load_checkpoint] " + path +
          " has version 2. This library reads version 1.");
}

// A manifest with one value of a wrong type, and a valid checksum.
TEST(CheckpointErrors, OfWrongTypesInTheManifest) {
  const Folder folder;
  save(folder / "one");
  const auto path = folder / "one/checkpoint.json";
  const auto whole = text_of(path);
  const auto error = [&](const std::string& pointer,
                         const nlohmann::json& value) {
    put(path, whole);
    change_manifest(path, [&](auto& manifest) {
      manifest[nlohmann::json::json_pointer(pointer)] = value;
    });
    const auto text = load(folder / "one");
    const auto begin = "[load_checkpoint] " + path + ": ";
    const std::string end = ". Load an older checkpoint.";
    EXPECT_TRUE(text.starts_with(begin) && text.ends_with(end)) << text;
    return text.substr(begin.size(), text.size() - begin.size() - end.size());
  };
  const std::string shard = "shard-00001-model-00001-of-00001.safetensors";
  const auto of_shard = "files[\"" + shard + "\"]";
  EXPECT_EQ(
      error("/ranks", "2"), "ranks: expected an integer, got a string: \"2\"");
  EXPECT_EQ(
      error("/ranks", 0),
      "ranks: expected an integer from 1 to 9223372036854775807, got 0");
  EXPECT_EQ(
      error("/version", "1"),
      "version: expected an integer, got a string: \"1\"");
  EXPECT_EQ(error("/format", nullptr), "format: expected a string, got null");
  EXPECT_EQ(
      error("/format", "dtensor"), "format: expected \"dtensor checkpoint\"");
  EXPECT_EQ(error("/files", 3), "files: expected an object, got 3");
  EXPECT_EQ(
      error("/files/" + shard, "x"),
      of_shard + ": expected an object, got a string: \"x\"");
  EXPECT_EQ(
      error("/files/" + shard + "/bytes", -1),
      of_shard +
          ".bytes: expected an integer from 0 to 18446744073709551615, "
          "got -1");
  for (const auto* header : {"", "12", "zz34567890123456"}) {
    EXPECT_EQ(
        error("/files/" + shard + "/header", header),
        of_shard + ".header: expected a checksum of 16 hexadecimal digits");
  }
  EXPECT_EQ(
      error("/files/" + shard + "/header", 7),
      of_shard + ".header: expected a string, got 7");
  EXPECT_EQ(
      error("/extra", nlohmann::json::array()),
      "extra: expected an object, got an empty array");
  EXPECT_EQ(
      error("/extra/step", nullptr),
      "extra.step: expected an object, got null");
  EXPECT_EQ(
      error("/extra/step", {{"double", "many"}}),
      "extra.step.double: expected inf, -inf or nan, got \"many\"");
  EXPECT_EQ(
      error("/extra/step", {{"float", "inf"}}),
      "extra.step: \"double\" is missing");
  EXPECT_EQ(
      error("/extra/step", 18446744073709551615u),
      "extra.step: expected an integer from -9223372036854775808 to "
      "9223372036854775807, got 18446744073709551615");
  EXPECT_EQ(
      error("/extra_tensors", {1}),
      "extra_tensors[0]: expected a string, got 1");
  nlohmann::json deep;
  for (int level = 0; level < 200; ++level) {
    deep = nlohmann::json::array({deep});
  }
  EXPECT_EQ(error("/extra/step", deep), "more than 128 nested levels");
  put(path, std::string(100000, '['));
  EXPECT_EQ(
      load(folder / "one"),
      "[load_checkpoint] " + path +
          ": more than 128 nested levels. Load an older checkpoint.");
  put(path, whole);
  EXPECT_EQ(load(folder / "one"), "");
}

TEST(CheckpointErrors, OfFilesOutsideOfTheFolder) {
  const Folder folder;
  save(folder / "one");
  save(folder / "two");
  const auto path = folder / "one/checkpoint.json";
  const auto whole = text_of(path);
  const std::string shard = "shard-00001-model-00001-of-00001.safetensors";
  const auto error = [&](const std::string& name) {
    put(path, whole);
    change_manifest(path, [&](auto& manifest) {
      auto& files = manifest["files"];
      files[name] = files[shard];
      if (name != shard) {
        files.erase(shard);
      }
    });
    return load(folder / "one");
  };
  EXPECT_EQ(error(shard), "");
  for (const auto& name : {"../two/" + shard, folder / ("two/" + shard)}) {
    EXPECT_EQ(
        error(name),
        "[load_checkpoint] " + path + ": files[\"" + name.substr(0, 60) +
            (name.size() > 60 ? "\"...]" : "\"]") + ": \"" +
            name.substr(0, 60) + (name.size() > 60 ? "\"..." : "\"") +
            " is not a relative path within the folder. Load an older "
            "checkpoint.");
  }
  fs::remove(folder / ("one/" + shard));
  fs::create_symlink("../two/" + shard, folder / ("one/" + shard));
  const auto text = error(shard);
  EXPECT_NE(text.find("outside of the folder"), text.npos) << text;
}

TEST(CheckpointErrors, OfInvalidFiles) {
  const Folder folder;
  save(folder / "one");
  const std::string shard =
      folder / "one/shard-00001-model-00001-of-00001.safetensors";
  fs::remove(shard);
  EXPECT_EQ(::mkfifo(shard.c_str(), 0600), 0);
  const auto text = load(folder / "one");
  EXPECT_TRUE(
      text.starts_with("[load_checkpoint] " + shard + " cannot be read"))
      << text;
  const auto path = folder / "one/checkpoint.json";
  fs::remove(path);
  EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(
      load(folder / "one"),
      "[load_checkpoint] " + path +
          " cannot be read: a FIFO, not a regular file. Load an older "
          "checkpoint.");
  EXPECT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  const auto fifo = load(folder / "fifo");
  EXPECT_TRUE(
      fifo.starts_with("[open_weights] " + (folder / "fifo") + ": a FIFO"))
      << fifo;
}

// Any entry that is not a checkpoint stays.
TEST(CheckpointErrors, OfReplacingOtherFolders) {
  const Folder folder;
  StateDict state;
  state.insert("w", at::ones({3}));
  const auto error = [&](const std::string& name) {
    return error_of([&] {
      save_checkpoint(folder / name, {.tensors = &state}, {.overwrite = true});
    });
  };
  const auto refused = [&](const std::string& name, const std::string& why) {
    EXPECT_EQ(
        error(name),
        "[save_checkpoint] " + (folder / name) + " exists" + why +
            ". Choose another name, or move it.");
  };
  folder.write("thesis/chapter.txt", "text");
  refused("thesis", " and contains files but no checkpoint.json");
  EXPECT_EQ(text_of(folder / "thesis/chapter.txt"), "text");
  folder.write("like/checkpoint.json", "{}");
  refused("like", ", but its checkpoint.json was modified");
  EXPECT_EQ(text_of(folder / "like/checkpoint.json"), "{}");
  fs::create_directory_symlink("thesis", folder / "linked");
  refused("linked", " and contains files but no checkpoint.json");
  EXPECT_TRUE(fs::is_symlink(folder / "linked"));
  EXPECT_EQ(::mkfifo((folder / "fifo").c_str(), 0600), 0);
  refused("fifo", " and is not a checkpoint");
  // An empty folder and a checkpoint are replaced.
  fs::create_directory(folder / "empty");
  EXPECT_EQ(error("empty"), "");
  EXPECT_EQ(error("empty"), "");
  EXPECT_EQ(error("new/"), "");
  // Remains of a killed save are replaced too, but no other entry with such a
  // name.
  folder.write(".late.saving/rank-00000.json", "{}");
  EXPECT_EQ(error("late"), "");
  folder.write(".other.saving/notes.txt", "text");
  EXPECT_EQ(
      error("other"),
      "[save_checkpoint] " + (folder / ".other.saving") +
          " exists and was not left by a save. Move it, or choose another "
          "name.");
  EXPECT_EQ(text_of(folder / ".other.saving/notes.txt"), "text");
}

// State of an optimizer or a training loop may remain unused in the file. A
// weight may not, even if its name begins with the same prefix.
TEST(CheckpointErrors, ListAWeightThatIsCalledOptimizerOrExtra) {
  const Folder folder;
  auto model = filled(Mlp(6, 8));
  auto state = get_model_state_dict(*model);
  state.insert("optimizer.state.w1.weight.exp_avg", at::ones({8, 6}));
  state.insert("optimizer.param_groups.w1.weight.lr", at::ones({}));
  CheckpointExtra extra = {{"random", at::ones({3})}, {"step", 7}};
  save_checkpoint(folder / "one", {.tensors = &state, .extra = &extra});
  load_checkpoint(folder / "one", {.model = model.get()});
  state.insert("optimizer.weight", at::ones({2}));
  state.insert("extra.weight", at::ones({2}));
  save_checkpoint(folder / "two", {.tensors = &state, .extra = &extra});
  EXPECT_EQ(
      error_of(
          [&] { load_checkpoint(folder / "two", {.model = model.get()}); }),
      "[load_checkpoint] not in the model: extra.weight, optimizer.weight. "
      "Load it into a matching model, or load what matches with strict = "
      "false.");
  // Without checkpoint.json, the file looks like that of another program.
  fs::remove(folder / "two/checkpoint.json");
  EXPECT_EQ(
      error_of(
          [&] { load_checkpoint(folder / "two", {.model = model.get()}); }),
      "[load_checkpoint] not in the model: extra.random, extra.weight, "
      "optimizer.weight. Load it into a matching model, or load what matches "
      "with strict = false.");
}

// Checkpoints from versions that did not record the names of extra tensors can
// be loaded.
TEST(CheckpointErrors, TakesAnEarlyCheckpointsExtraTensors) {
  const Folder folder;
  auto model = filled(Mlp(6, 8));
  CheckpointExtra extra = {{"random", at::ones({3})}};
  save_checkpoint(folder / "one", {.model = model.get(), .extra = &extra});
  change_manifest(folder / "one/checkpoint.json", [](auto& manifest) {
    manifest.erase("extra_tensors");
  });
  load_checkpoint(folder / "one", {.model = model.get()});
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
      "[load_checkpoint] complex in the checkpoint but real in the model: w. "
      "Load it into a matching model, or load what matches with strict = "
      "false.");
}

// Ranks that see different checkpoints, for example in folders of different
// machines, get an error.
TEST(CheckpointErrors, OfRanksWithDifferentTensors) {
  const Folder folder;
  save(folder / "one");
  save(folder / "two");
  run_ranks(2, [&] {
    auto state = state_on(init_device_mesh(at::kCPU, {2}));
    const auto path = folder / (get_rank() == 0 ? "one" : "two");
    const auto error =
        error_of([&] { load_checkpoint(path, {.tensors = &state}); });
    const auto begin =
        "[load_checkpoint] arguments differ between ranks: rank 0 has " +
        (folder / "one") + " of ";
    EXPECT_EQ(error.substr(0, begin.size()), begin) << error;
  });
}

// Ranks with different options get an error, because they would otherwise
// deadlock.
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
        "[load_checkpoint] arguments differ between ranks: rank 0 has "
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
        "[save_checkpoint] arguments differ between ranks: rank 0 has " + path +
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
          "[load_checkpoint] \"w\" is also on rank 1, which is not in the "
          "group that loads. Pass a group with all ranks of its mesh.");
      EXPECT_EQ(
          error_of([&] {
            save_checkpoint(
                folder / "one",
                {.tensors = &state},
                {.group = new_group({0}, "alone")});
          }),
          "[save_checkpoint] \"w\" is also on rank 1, which is not in the "
          "group that saves. Pass a group with all ranks of its mesh.");
    }
  });
}

// Files with shards that other programs have written: missing, overlapping and
// malformed shards.
TEST(CheckpointErrors, OfShards) {
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
      ". Pass a safetensors file, the index of several, a GGUF file, or an "
      "exported program.";
  const auto error = [&] { return error_of([&] { open_weights(path); }); };
  EXPECT_EQ(
      error(),
      "[open_weights] " + path + ": a folder without safetensors files" + end);
  piece("a", "[0]");
  EXPECT_EQ(error(), "");
  piece("b", "[3]");
  EXPECT_EQ(
      error(),
      "[open_weights] " + path +
          ": the weight w is f32[5], but its shards hold 4 of 5 elements: "
          "files are missing" +
          end);
  piece("b", "[1]");
  EXPECT_EQ(
      error(),
      "[open_weights] " + path + ": the weight w has overlapping shards" + end);
  piece("b", "[1,0]");
  EXPECT_EQ(
      error(),
      "[open_weights] " + (folder / "b.safetensors") +
          ": header: w: the numbers of saved_offsets and sizes differ" + end);
  piece("b", "[-1]");
  EXPECT_EQ(
      error(),
      "[open_weights] " + (folder / "b.safetensors") +
          ": header: __metadata__.DCP_SHARDING_INFO: w.saved_offsets[0]: "
          "expected "
          "an integer from 0 to 281474976710656, got -1" +
          end);
  piece("b", "[2]");
  // Data that is not aligned to four bytes is valid.
  EXPECT_TRUE(at::equal(open_weights(path)->read("w"), at::zeros({4})));
}

TEST(CheckpointErrors, OfPartialTargets) {
  const Folder folder;
  save(folder / "one");
  const auto mesh = init_device_mesh(at::kCPU, {1});
  StateDict state;
  state.insert("w", DTensor::from_local(at::zeros({8, 5}), mesh, {Partial()}));
  EXPECT_EQ(
      error_of([&] { load_checkpoint(folder / "one", {.tensors = &state}); }),
      "[load_checkpoint] cannot load into a Partial tensor: \"w\" is f32[8, "
      "5] on (1): P(sum). Redistribute it first.");
}

// The folder of an interrupted save is removed.
TEST(CheckpointErrors, OfOneRank) {
  const Folder folder;
  const auto path = folder / "one";
  run_ranks(2, [&] {
    CheckpointExtra extra = {
        {"text", std::string(get_rank() == 1 ? "\xff" : "a")}};
    const std::string own =
        "[save_checkpoint] a string in `extra` is not valid UTF-8. Save bytes "
        "as a tensor.";
    EXPECT_EQ(
        error_of([&] { save_checkpoint(path, {.extra = &extra}); }),
        get_rank() == 1
            ? own
            : "[save_checkpoint] " + path + " was not saved. rank 1: " + own);
  });
  EXPECT_TRUE(fs::is_empty(folder / ""));
}

TEST(CheckpointWithoutTensors, IsSavedAndLoaded) {
  const Folder folder;
  for (const bool full : {false, true}) {
    const auto path = folder / (full ? "full" : "shards");
    CheckpointExtra extra = {{"step", 3}};
    save_checkpoint(path, {.extra = &extra}, {.full = full});
    torch::nn::Module model;
    CheckpointExtra loaded;
    load_checkpoint(path, {.model = &model, .extra = &loaded});
    EXPECT_EQ(std::get<int64_t>(loaded.at("step")), 3);
  }
}

// Ranks outside of the mesh of a tensor take part.
TEST(CheckpointOfAMesh, IsSavedAndLoadedByAllRanks) {
  const Folder folder;
  const auto truth = at::arange(10, at::kFloat).view({5, 2});
  run_ranks(3, [&] {
    const auto mesh = make_device_mesh(at::kCPU, at::arange(2), {"tp"});
    StateDict state;
    state.insert("w", distribute_tensor(truth, mesh, {Shard(0)}, std::nullopt));
    save_checkpoint(folder / "one", {.tensors = &state});
    {
      const at::NoGradGuard no_grad;
      DTensor(state["w"]).to_local().zero_();
    }
    load_checkpoint(folder / "one", {.tensors = &state});
    if (mesh.contains_this_rank()) {
      EXPECT_TRUE(at::equal(full(state["w"]), truth));
    }
  });
}

// Errors of the system name the file. The files of /proc and /dev fail as files
// on a damaged disk do.
TEST(CheckpointErrors, OfTheSystem) {
  const Folder folder;
  fs::create_directories(folder / "folder/inner");
  const auto pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::fstream reader(pipe); // so that opening it does not wait
  const std::vector<std::pair<std::function<void()>, std::string>> cases = {
      {[] { detail::OutFile("/no/file"); },
       "cannot create /no/file: No such file or directory"},
      {[&] { detail::OutFile(pipe).write_at("a", 1, 7); },
       "cannot seek in " + pipe + ": Illegal seek"},
      {[] { detail::OutFile("/dev/null").close(); },
       "cannot write /dev/null: Invalid argument"},
      {[&] { detail::write_small_file(folder / "folder", "a"); },
       "cannot write " + (folder / "folder") + ": Is a directory"},
      {[] { detail::sync_folder("/proc"); },
       "cannot write the folder /proc: Invalid argument"},
      {[&] { detail::rename_folder(folder / "none", folder / "folder", true); },
       "cannot replace " + (folder / "folder") + ": No such file or directory"},
      {[&] {
         detail::rename_folder(
             folder / "folder/inner", folder / "folder", false);
       },
       "cannot rename the checkpoint to " + (folder / "folder") +
           ": File exists"}};
  for (const auto& [call, why] : cases) {
    EXPECT_EQ(
        error_of(call),
        "[save_checkpoint] " + why +
            ". Save again once this is corrected; earlier checkpoints are "
            "unchanged.");
  }
  std::string why_not;
  EXPECT_EQ(detail::read_small_file("/proc/self/mem", &why_not), "");
  EXPECT_EQ(why_not, "Input/output error");
  EXPECT_FALSE(detail::is_checkpoint(folder / "none"));
}

} // namespace TEST_SOURCE
} // namespace dtensor
