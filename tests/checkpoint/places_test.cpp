// SPDX-License-Identifier: BSD-3-Clause
// Tensors with unusual names, paths or memory layouts are saved and loaded.
#include <dtensor/checkpoint/async_saver.h>
#include <dtensor/checkpoint/checkpoint.h>
#include <tests/parallel/modules.h>
#include <tests/weights/files.h>

#include <filesystem>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test_modules;
using test_weights::Folder;
namespace fs = std::filesystem;

// Conjugates, negatives and views are saved correctly, although their values
// differ from the bytes in memory.
TEST(Checkpoint, HasTheValuesOfViews) {
  const Folder folder;
  const auto c = at::complex(at::arange(6.), at::arange(6.) + 7).view({2, 3});
  const std::vector<at::Tensor> values = {
      at::conj(c),
      at::imag(at::conj(c)),
      c.t(),
      at::arange(4.).expand({3, 4}),
      at::_efficientzerotensor({2, 3})};
  for (const bool beside : {false, true}) {
    StateDict state;
    StateDict loaded;
    for (size_t i = 0; i < values.size(); ++i) {
      const auto name = "w" + std::to_string(i);
      state.insert(name, values[i]);
      // The target is a conjugate too, but has other memory.
      loaded.insert(
          name,
          i == 0 ? at::conj(at::zeros_like(c))
                 : at::zeros(values[i].sizes(), values[i].options()));
    }
    const auto path = folder / (beside ? "a" : "b");
    if (beside) {
      AsyncSaver saver;
      saver.save(path, {.tensors = &state});
      saver.wait();
    } else {
      save_checkpoint(path, {.tensors = &state});
    }
    load_checkpoint(path, {.tensors = &loaded});
    for (size_t i = 0; i < values.size(); ++i) {
      const auto plain = values[i].resolve_conj().resolve_neg() + 0;
      EXPECT_TRUE(
          at::equal(loaded["w" + std::to_string(i)].resolve_conj(), plain))
          << i;
    }
  }
}

// Submodules may be named like the prefixes of optimizer state and extra
// values.
TEST(Checkpoint, DistinguishesItsNamesFromNamesOfTheModel) {
  struct Odd : torch::nn::Module {
    Odd() {
      register_module("optimizer", Mlp(3, 2));
      register_module("extra", Mlp(3, 2));
    }
  };
  const Folder folder;
  Odd model;
  torch::optim::AdamW optimizer(model.parameters(), 0.1);
  for (auto& parameter : model.parameters()) {
    parameter.mutable_grad() = at::ones_like(parameter);
  }
  optimizer.step();
  CheckpointExtra extra = {{"step", 3}, {"seen", at::arange(3)}};
  const CheckpointState state{
      .model = &model, .optimizer = &optimizer, .extra = &extra};
  save_checkpoint(folder / "one", state);
  const auto truth = model.parameters()[5].detach().clone();
  {
    const at::NoGradGuard no_grad;
    model.parameters()[5].zero_();
  }
  load_checkpoint(folder / "one", state);
  EXPECT_TRUE(at::equal(model.parameters()[5], truth));
  EXPECT_EQ(extra.size(), 2);
  EXPECT_EQ(optimizer.state().size(), 8);
}

// A weight of a submodule `extra` is not a tensor of `extra`.
TEST(Checkpoint, DoesNotTakeAWeightForAnExtraTensor) {
  struct Odd : torch::nn::Module {
    Odd() {
      register_module("extra", torch::nn::Linear(3, 2));
    }
  };
  const Folder folder;
  Odd model;
  CheckpointExtra extra = {{"step", 1}};
  save_checkpoint(folder / "one", {.model = &model, .extra = &extra});
  CheckpointExtra loaded;
  load_checkpoint(folder / "one", {.extra = &loaded});
  EXPECT_EQ(loaded.size(), 1);
  EXPECT_EQ(std::get<int64_t>(loaded.at("step")), 1);
  torch::nn::Module other;
  EXPECT_EQ(
      error_of([&] {
        load_checkpoint(folder / "one", {.model = &other, .extra = &loaded});
      }),
      "[load_checkpoint] not in the model: extra.bias, extra.weight. Load it "
      "into a matching model, or load what matches with strict = false.");
}

// All other names are allowed.
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

// Loading follows a link. Saving with overwrite replaces the link and leaves
// its target unchanged.
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
  const fs::directory_iterator all(folder / "");
  EXPECT_EQ(std::distance(begin(all), end(all)), 2);
}

// Files copied into the folder later are not read, even if they are named like
// a model.
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

} // namespace TEST_SOURCE
} // namespace dtensor
