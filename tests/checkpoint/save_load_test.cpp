// SPDX-License-Identifier: BSD-3-Clause
// Tensors saved in one layout are loaded into any other layout, on other ranks.
#include <dtensor/checkpoint/checkpoint.h>
#include <dtensor/deferred/deferred_init.h>
#include <dtensor/layout/text.h>
#include <tests/parallel/modules.h>
#include <tests/weights/files.h>

#include <filesystem>
#include <set>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test_modules;
using test_weights::Folder;

TEST(Checkpoint, GoesFromTwoRanksToThree) {
  const Folder folder;
  const auto path = folder / "one";
  const auto truth = filled(Mlp(6, 7));
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto model = filled(Mlp(6, 7));
    parallelize_module(*model, mesh, mlp_plan());
    save_checkpoint(path, {.model = model.get()});
  });
  for (const int64_t ranks : {1, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      auto model = filled(Mlp(6, 7), 50);
      parallelize_module(*model, mesh, mlp_plan());
      const auto version = model->w1->weight._version();
      load_checkpoint(path, {.model = model.get()});
      EXPECT_GT(model->w1->weight._version(), version);
      expect_same_parameters(*model, *truth);
    });
  }
}

// A mesh and a layout on it.
struct Layout {
  std::vector<int64_t> shape;
  Placements placements;
};

int64_t size_of(const Layout& layout) {
  int64_t size = 1;
  for (const auto n : layout.shape) {
    size *= n;
  }
  return size;
}

const std::vector<Layout> kLayouts = {
    {{1}, {Replicate()}},
    {{3}, {Replicate()}},
    {{4}, {Shard(0)}},
    {{3}, {Shard(1)}},
    {{5}, {Shard(0)}},
    {{3}, {Shard(0, 3)}},
    {{2}, {StridedShard(0, 2)}},
    {{2, 2}, {Shard(0), Shard(1)}},
    {{2, 2}, {Shard(0), Replicate()}},
    {{2, 2}, {Replicate(), Shard(1)}},
    {{2, 2}, {StridedShard(0, 2), Shard(0)}},
    {{2, 3}, {Shard(1), Shard(1)}},
    {{3, 2}, {Shard(0), StridedShard(0, 3)}}};

at::Tensor numbers(at::IntArrayRef sizes, at::ScalarType dtype) {
  const auto n = c10::multiply_integers(sizes);
  const auto all = at::arange(n, at::kLong) * 37 % 101 - 50;
  return dtype == at::kBool ? all.gt(0).view(sizes) : all.view(sizes).to(dtype);
}

// Returns tensors that are sharded unevenly, with empty shards, or not at all.
StateDict
tensors_in(const DeviceMesh& mesh, const Placements& placements, bool zeros) {
  StateDict all;
  const auto add = [&](const std::string& name, at::Tensor whole) {
    if (zeros) {
      whole = at::zeros_like(whole);
    }
    all.insert(name, distribute_tensor(whole, mesh, placements, std::nullopt));
  };
  add("even", numbers({8, 12}, at::kDouble));
  add("uneven", numbers({7, 5, 2}, at::kFloat));
  add("small", numbers({1, 2}, at::kLong));
  add("nothing", numbers({0, 3}, at::kFloat));
  for (const auto dtype :
       {at::kHalf,
        at::kBFloat16,
        at::kInt,
        at::kShort,
        at::kChar,
        at::kBool,
        at::kComplexFloat,
        at::kFloat8_e4m3fn}) {
    add(c10::toString(dtype), numbers({5, 3}, dtype));
  }
  // A local shard that is not contiguous.
  at::Tensor turned = distribute_tensor(
      numbers({6, 4}, at::kFloat), mesh, placements, std::nullopt);
  all.insert("turned", zeros ? at::zeros_like(turned.t()) : turned.t());
  // A zero-dimensional tensor can only be replicated.
  const auto number = distribute_tensor(
      at::scalar_tensor(zeros ? 0. : 2.5, at::kDouble),
      mesh,
      Placements(placements.size(), Replicate()),
      std::nullopt);
  all.insert("number", number);
  all.insert("plain", zeros ? at::zeros({3}) : at::arange(3.));
  return all;
}

TEST(Checkpoint, GoesFromAnyLayoutToAnyOther) {
  for (size_t from = 0; from < kLayouts.size(); ++from) {
    const Folder folder;
    const auto path = folder / "one";
    const auto& source = kLayouts[from];
    run_ranks(size_of(source), [&] {
      const auto mesh = init_device_mesh(at::kCPU, source.shape);
      auto saved = tensors_in(mesh, source.placements, false);
      save_checkpoint(path, {.tensors = &saved});
    });
    for (const auto& target : kLayouts) {
      run_ranks(size_of(target), [&] {
        const auto mesh = init_device_mesh(at::kCPU, target.shape);
        const auto truth = tensors_in(mesh, target.placements, false);
        auto loaded = tensors_in(mesh, target.placements, true);
        load_checkpoint(path, {.tensors = &loaded});
        for (const auto& item : truth) {
          const auto value = full(loaded[item.key()]);
          const auto whole = full(item.value());
          EXPECT_TRUE(at::equal(
              value.to(at::kComplexDouble), whole.to(at::kComplexDouble)))
              << item.key() << " from " << from << " to "
              << to_string(target.placements);
        }
      });
    }
  }
}

// Replicas share the reading of a large tensor and exchange their slices.
TEST(Checkpoint, IsReadInShares) {
  const Folder folder;
  const auto path = folder / "one";
  const auto whole = numbers({600, 1000}, at::kFloat);
  run_ranks(3, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    StateDict saved;
    saved.insert("w", distribute_tensor(whole, mesh, {Shard(1)}, std::nullopt));
    saved.insert("plain", whole);
    save_checkpoint(path, {.tensors = &saved});
  });
  for (const bool shared : {true, false}) {
    run_ranks(4, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {2, 2});
      for (const Placements& placements :
           {Placements{Replicate(), Replicate()},
            Placements{Shard(0), Replicate()},
            Placements{Replicate(), Shard(1)}}) {
        StateDict loaded;
        loaded.insert(
            "w",
            distribute_tensor(
                at::zeros_like(whole), mesh, placements, std::nullopt));
        loaded.insert("plain", at::zeros_like(whole));
        load_checkpoint(path, {.tensors = &loaded}, {.share_reading = shared});
        EXPECT_TRUE(at::equal(full(loaded["w"]), whole));
        EXPECT_TRUE(at::equal(loaded["plain"], whole));
      }
    });
  }
}

TEST(Checkpoint, GivesMemoryToADeferredModel) {
  const Folder folder;
  const auto path = folder / "one";
  auto truth = filled(Mlp(6, 7));
  save_checkpoint(path, {.model = truth.get()});
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    Mlp model{nullptr};
    {
      const DeferredInit scope;
      model = Mlp(6, 7);
      model->to(at::kDouble);
    }
    parallelize_module(*model, mesh, mlp_plan());
    load_checkpoint(path, {.model = model.get()});
    expect_same_parameters(*model, *truth);
  });
}

TEST(Checkpoint, HasNumbersTextsAndTensorsBeside) {
  const Folder folder;
  const auto path = folder / "one";
  const CheckpointExtra truth = {
      {"step", 7},
      {"best", 0.1},
      {"one", 1.0},
      {"none", std::numeric_limits<double>::infinity()},
      {"done", true},
      {"name", "run \"3\""}};
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    auto extra = truth;
    extra["seen"] = at::arange(5);
    extra["cut"] =
        distribute_tensor(at::arange(5), mesh, {Shard(0)}, std::nullopt);
    save_checkpoint(path, {.extra = &extra});
  });
  run_ranks(3, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    CheckpointExtra extra = {
        {"gone", 1},
        {"cut",
         distribute_tensor(at::zeros({5}), mesh, {Shard(0)}, std::nullopt)}};
    load_checkpoint(path, {.extra = &extra});
    const auto cut = std::get<at::Tensor>(extra.at("cut"));
    EXPECT_EQ(layout_of(cut), Shard(0));
    EXPECT_TRUE(at::equal(full(cut), at::arange(5.)));
    EXPECT_TRUE(
        at::equal(std::get<at::Tensor>(extra.at("seen")), at::arange(5)));
    extra.erase("cut");
    extra.erase("seen");
    EXPECT_EQ(extra.size(), truth.size());
    for (const auto& [name, value] : truth) {
      EXPECT_EQ(extra.at(name).index(), value.index()) << name;
    }
    EXPECT_EQ(std::get<int64_t>(extra.at("step")), 7);
    EXPECT_EQ(std::get<double>(extra.at("best")), 0.1);
    EXPECT_EQ(std::get<double>(extra.at("one")), 1.0);
    EXPECT_EQ(std::get<std::string>(extra.at("name")), "run \"3\"");
    EXPECT_EQ(
        std::get<double>(extra.at("none")), std::get<double>(truth.at("none")));
  });
}

// LibTorch allows writes to inference tensors only in inference mode.
TEST(Checkpoint, IsLoadedIntoInferenceTensors) {
  const Folder folder;
  const auto path = folder / "one";
  const auto state_of = [](const at::Tensor& value, at::ScalarType other) {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    StateDict state;
    state.insert(
        "cut", distribute_tensor(value, mesh, {Shard(0)}, std::nullopt));
    state.insert("other", value.to(other));
    state.insert("plain", value.clone());
    return state;
  };
  run_ranks(2, [&] {
    const auto truth = at::arange(5, at::kFloat);
    auto state = state_of(truth, at::kFloat);
    save_checkpoint(path, {.tensors = &state});
    StateDict loaded;
    {
      const c10::InferenceMode mode;
      loaded = state_of(at::zeros({5}, at::kFloat), at::kDouble);
    }
    load_checkpoint(path, {.tensors = &loaded});
    const c10::InferenceMode mode;
    for (const auto& item : loaded) {
      EXPECT_TRUE(item.value().is_inference()) << item.key();
      EXPECT_TRUE(at::equal(full(item.value()).to(at::kFloat), truth))
          << item.key();
    }
  });
}

// Each element is written once, and replicas write about equally many bytes.
TEST(Checkpoint, HasEveryElementOnce) {
  const Folder folder;
  const auto path = folder / "one";
  run_ranks(4, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2});
    StateDict saved;
    saved.insert(
        "large",
        distribute_tensor(
            at::ones({2048, 1024}),
            mesh,
            {Shard(0), Replicate()},
            std::nullopt));
    for (int64_t i = 0; i < 8; ++i) {
      saved.insert("small" + std::to_string(i), at::ones({64, 64}));
    }
    save_checkpoint(path, {.tensors = &saved});
  });
  std::vector<uint64_t> sizes;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    if (entry.path().extension() == ".safetensors") {
      sizes.push_back(entry.file_size());
    }
  }
  ASSERT_EQ(sizes.size(), 4);
  const uint64_t fair = (2048 * 1024 + 8 * 64 * 64) * 4 / 4;
  for (const auto size : sizes) {
    EXPECT_GE(size, fair);
    EXPECT_LE(size, fair + 4096);
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
