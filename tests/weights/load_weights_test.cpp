// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/deferred/deferred_init.h>
#include <dtensor/parallel/attention_parallel.h>
#include <dtensor/weights/load_weights.h>
#include <tests/parallel/modules.h>

#include <nlohmann/json.hpp>

#include "files.h"
#include "gguf_files.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace test_modules;
using namespace test_weights;

std::map<std::string, at::Tensor> tensors_of(const torch::nn::Module& module) {
  std::map<std::string, at::Tensor> all;
  for (const auto& item : module.named_parameters()) {
    all[item.key()] = item.value().detach().clone();
  }
  for (const auto& item : module.named_buffers()) {
    all[item.key()] = item.value().detach().clone();
  }
  return all;
}

// Returns a model with values that float32 represents exactly.
Mlp rounded(int64_t width, int64_t hidden) {
  auto model = filled(Mlp(width, hidden));
  const torch::NoGradGuard no_grad;
  for (auto& p : model->parameters()) {
    p.copy_(p.to(at::kFloat));
  }
  return model;
}

TEST(LoadWeights, FillsTheLocalShardsOfEveryRank) {
  const Folder folder;
  const auto truth = rounded(6, 7);
  const auto path =
      folder.write("model.safetensors", safetensors_of(tensors_of(*truth)));
  for (const int64_t ranks : {1, 2, 3, 5}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      for (const bool parallel : {true, false}) {
        auto model = filled(Mlp(6, 7), 50);
        if (parallel) {
          parallelize_module(*model, mesh, mlp_plan());
        }
        const auto version = model->w1->weight._version();
        load_weights(*model, *open_weights(path));
        EXPECT_GT(model->w1->weight._version(), version);
        const auto all = truth->named_parameters();
        for (const auto& item : model->named_parameters()) {
          EXPECT_TRUE(at::equal(full(item.value()), all[item.key()]))
              << item.key();
          EXPECT_EQ(is_dtensor(item.value()), parallel);
        }
      }
    });
  }
}

// Tensors that the file does not have are initialized.
TEST(LoadWeights, AllocatesADeferredModel) {
  const Folder folder;
  const auto truth = rounded(6, 7);
  auto tensors = tensors_of(*truth);
  tensors.erase("w2.bias");
  const auto path = folder.write("model.safetensors", safetensors_of(tensors));
  for (const int64_t ranks : {1, 2, 3, 5}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      Mlp model{nullptr};
      {
        const DeferredInit scope;
        model = Mlp(6, 7);
        model->to(at::kDouble);
      }
      parallelize_module(*model, mesh, mlp_plan());
      const WeightNames names = [](const std::string& name) {
        return WeightSource{name == "w2.bias" ? "" : name};
      };
      load_weights(*model, *open_weights(path), {.names = names});
      EXPECT_TRUE(is_deferred(model->w2->bias));
      materialize(*model);
      for (const auto& item : model->named_parameters()) {
        const auto whole = full(item.value());
        if (item.key() == "w2.bias") {
          EXPECT_GT(whole.abs().max().item<double>(), 0);
        } else {
          EXPECT_TRUE(at::equal(whole, tensors.at(item.key()))) << item.key();
        }
        EXPECT_TRUE(is_dtensor(item.value()));
      }
    });
  }
}

TEST(LoadWeights, FillsShardsInMultiples) {
  const Folder folder;
  const auto truth = rounded(12, 9);
  const auto path =
      folder.write("model.safetensors", safetensors_of(tensors_of(*truth)));
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto model = filled(Mlp(12, 9), 50);
    parallelize_module(
        *model,
        mesh,
        {{"w1", ColwiseParallel({.multiple_of = 3})},
         {"w2", RowwiseParallel({.multiple_of = 3})}});
    EXPECT_EQ(layout_of(model->w1->weight), Shard(0, 3));
    load_weights(*model, *open_weights(path));
    EXPECT_TRUE(at::equal(full(model->w1->weight), truth->w1->weight));
    EXPECT_TRUE(at::equal(full(model->w2->weight), truth->w2->weight));
  });
}

// Each rank gets its heads of q, k and v from the fused weight.
TEST(LoadWeights, FillsFusedWeights) {
  const Folder folder;
  auto truth = filled(torch::nn::MultiheadAttention(12, 3));
  truth->to(at::kFloat);
  const auto path =
      folder.write("model.safetensors", safetensors_of(tensors_of(*truth)));
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto model = filled(torch::nn::MultiheadAttention(12, 3), 50);
    parallelize_module(*model, mesh, AttentionParallel());
    load_weights(*model, *open_weights(path));
    EXPECT_EQ(layout_of(model->in_proj_weight), StridedShard(0, 3, 4));
    const auto all = truth->named_parameters();
    for (const auto& item : model->named_parameters()) {
      EXPECT_TRUE(
          at::equal(full(item.value()), all[item.key()].to(at::kDouble)))
          << item.key();
    }
  });
}

TEST(LoadWeights, FindsOtherNamesAndTransposedWeights) {
  const Folder folder;
  const auto truth = rounded(6, 8);
  const auto path = folder.write(
      "model.safetensors",
      safetensors_of(
          {{"up", truth->w1->weight.t()},
           {"up.bias", truth->w1->bias},
           {"down", truth->w2->weight},
           {"rope.freqs", at::ones({3})}}));
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto model = filled(Mlp(6, 8), 50);
    const auto kept = model->w2->bias.detach().clone();
    parallelize_module(*model, mesh, mlp_plan());
    const std::map<std::string, WeightSource> names = {
        {"w1.weight", {.name = "up", .transposed = true}},
        {"w1.bias", {.name = "up.bias"}},
        {"w2.weight", {.name = "down"}},
        {"w2.bias", {}}};
    load_weights(
        *model,
        *open_weights(path),
        {.names = [&](const std::string& name) { return names.at(name); },
         .ignored = {"rope.*"}});
    EXPECT_TRUE(at::equal(full(model->w1->weight), truth->w1->weight));
    EXPECT_TRUE(at::equal(full(model->w1->bias), truth->w1->bias));
    EXPECT_TRUE(at::equal(full(model->w2->weight), truth->w2->weight));
    EXPECT_TRUE(at::equal(full(model->w2->bias), kept));
  });
}

// Interleaved rows are restored: llama.cpp writes the rows of each of two heads
// of four rows as (0 2 1 3).
TEST(LoadWeights, ReordersInterleavedHalves) {
  const Folder folder;
  const auto rows = at::arange(16, at::kFloat).view({8, 2});
  const auto stored =
      rows.view({2, 2, 2, 2}).transpose(1, 2).reshape({8, 2}).contiguous();
  const auto path =
      folder.write("model.safetensors", safetensors_of({{"weight", stored}}));
  run_ranks(3, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {3}, {"tp"});
    torch::nn::Linear q(torch::nn::LinearOptions(2, 8).bias(false));
    parallelize_module(*q, mesh, ColwiseParallel({.multiple_of = 4}));
    load_weights(
        *q, *open_weights(path), {.names = [](const std::string& name) {
          return WeightSource{.name = name, .interleaved_heads = 2};
        }});
    EXPECT_TRUE(at::equal(full(q->weight), rows));
  });
}

// LibTorch allows writes to inference tensors only in inference mode.
TEST(LoadWeights, FillsInferenceTensors) {
  const Folder folder;
  const auto truth = at::arange(6, at::kFloat).view({2, 3});
  const auto path = folder.write(
      "model.safetensors",
      safetensors_of(
          {{"same", truth}, {"other", truth}, {"transposed", truth.t()}}));
  torch::nn::Module model;
  {
    const c10::InferenceMode mode;
    model.register_buffer("same", at::zeros({2, 3}, at::kFloat));
    model.register_buffer("other", at::zeros({2, 3}, at::kDouble));
    model.register_buffer("transposed", at::zeros({2, 3}, at::kFloat));
  }
  load_weights(
      model, *open_weights(path), {.names = [](const std::string& name) {
        return WeightSource{.name = name, .transposed = name == "transposed"};
      }});
  for (const auto& item : model.named_buffers()) {
    EXPECT_TRUE(item.value().is_inference()) << item.key();
    EXPECT_TRUE(at::equal(item.value().to(at::kFloat), truth)) << item.key();
  }
}

TEST(LoadWeightsErrors, ListAllNamesAndChangeNothing) {
  const Folder folder;
  const auto path = folder.write(
      "model.safetensors",
      safetensors_of(
          {{"w1.weight", at::ones({8, 6})},
           {"w1.bias", at::ones({7})},
           {"w3.weight", at::ones({2})},
           {"w3.bias", at::ones({2})}}));
  auto model = filled(Mlp(6, 8));
  const auto before = model->w1->weight.detach().clone();
  EXPECT_EQ(
      error_of([&] { load_weights(*model, *open_weights(path)); }),
      "[load_weights] " + path +
          ": not in the file: w2.weight, w2.bias; not in the model: w3.bias, "
          "w3.weight; of another shape: w1.bias is f32[7] in the file, f64[8] "
          "in the model. Map names to those of the file with `names`, and "
          "list weights that the model does not use in `ignored`.");
  EXPECT_TRUE(at::equal(model->w1->weight, before));
}

TEST(LoadWeightsErrors, OfTransposedAndComplexWeights) {
  const Folder folder;
  const auto path = folder.write(
      "model.safetensors",
      safetensors_of(
          R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
          R"("b":{"dtype":"C64","shape":[1],"data_offsets":[4,12]}})",
          std::string(12, '\0')));
  torch::nn::Module model;
  model.register_buffer("a", at::zeros({1}));
  model.register_buffer("b", at::zeros({1}));
  EXPECT_EQ(
      error_of([&] {
        load_weights(
            model, *open_weights(path), {.names = [](const std::string& name) {
              return WeightSource{.name = name, .transposed = name == "a"};
            }});
      }),
      "[load_weights] " + path +
          ": of another shape: a is f32[1] transposed in the file, f32[1] in "
          "the model; complex in the file but real in the model: b. Map names "
          "to those of the file with `names`, and list weights that the model "
          "does not use in `ignored`.");
}

// Other ranks have no shards to fill.
TEST(LoadWeights, FillsTheRanksOfAMesh) {
  const Folder folder;
  const auto truth = rounded(6, 7);
  const auto path =
      folder.write("model.safetensors", safetensors_of(tensors_of(*truth)));
  run_ranks(3, [&] {
    const auto mesh = make_device_mesh(at::kCPU, at::arange(2), {"tp"});
    auto model = filled(Mlp(6, 7), 50);
    parallelize_module(*model, mesh, mlp_plan());
    load_weights(*model, *open_weights(path));
    if (mesh.contains_this_rank()) {
      const auto all = truth->named_parameters();
      for (const auto& item : model->named_parameters()) {
        EXPECT_TRUE(at::equal(full(item.value()), all[item.key()]))
            << item.key();
      }
    }
  });
}

TEST(WeightNamesTest, OfTransformersInGguf) {
  const Folder folder;
  const auto path =
      folder.write("x.safetensors", safetensors_of({{"w", at::ones({2})}}));
  EXPECT_EQ(
      error_of([&] { gguf_names(*open_weights(path)); }),
      "[gguf_names] " + path +
          " has architecture \"\", which is not supported (supported: llama, "
          "bert, gpt2). Pass a WeightNames function of your own.");
}

TEST(WeightNamesTest, OfGgufMatchItsLibrary) {
  if (!written_files().why_not.empty()) {
    GTEST_SKIP() << written_files().why_not;
  }
  const auto folder = written_files().folder + "/";
  const auto all = nlohmann::json::parse(std::ifstream(folder + "names.json"));
  ASSERT_EQ(all.size(), 3);
  for (const auto& [architecture, names] : all.items()) {
    const auto rename =
        gguf_names(*open_weights(folder + architecture + ".gguf"));
    for (const auto& [name, truth] : names.items()) {
      EXPECT_EQ(rename(name).name, truth.get<std::string>()) << name;
    }
  }
  const auto llama = gguf_names(*open_weights(folder + "llama.gguf"));
  const std::string layer = "model.layers.1.self_attn.";
  EXPECT_EQ(llama(layer + "q_proj.weight").interleaved_heads, 4);
  EXPECT_EQ(llama(layer + "k_proj.weight").interleaved_heads, 2);
  EXPECT_EQ(llama(layer + "v_proj.weight").interleaved_heads, 0);
}

// llama.cpp reorders the rows of queries and keys, and the elements of their
// biases.
TEST(WeightNamesTest, OfLlamaInGgufReorderBiases) {
  const Folder folder;
  const auto data_of = [](const std::vector<float>& values) {
    std::string data;
    for (const auto value : values) {
      data += bytes_of(value);
    }
    data.resize(32); // the alignment
    return data;
  };
  const auto path = folder.write(
      "llama.gguf",
      gguf_of(
          {{pair_of("general.architecture", kText, text_of("llama")),
            pair_of(
                "llama.attention.head_count", kUint32, bytes_of(uint32_t{1})),
            pair_of(
                "llama.attention.head_count_kv",
                kUint32,
                bytes_of(uint32_t{2}))},
           {tensor_of("blk.0.attn_q.bias", 4, kF32, 0),
            tensor_of("blk.0.attn_k.bias", 8, kF32, 32),
            tensor_of("blk.0.attn_v.bias", 4, kF32, 64)}}) +
          data_of({0, 2, 1, 3}) + data_of({0, 2, 1, 3, 4, 6, 5, 7}) +
          data_of({0, 1, 2, 3}));
  torch::nn::Module model;
  model.register_buffer("q_proj", at::zeros({4}));
  model.register_buffer("k_proj", at::zeros({8}));
  model.register_buffer("v_proj", at::zeros({4}));
  const auto file = open_weights(path);
  const auto rename = gguf_names(*file);
  EXPECT_EQ(rename("vision.patches").name, "vision.patches");
  load_weights(model, *file, {.names = [&](const std::string& name) {
                 return rename("model.layers.0.self_attn." + name + ".bias");
               }});
  for (const auto& item : model.named_buffers()) {
    EXPECT_TRUE(
        at::equal(item.value(), at::arange(item.value().numel(), at::kFloat)))
        << item.key();
  }
}

TEST(WeightNamesTest, OfConv1d) {
  const auto names = conv1d_names();
  EXPECT_TRUE(names("h.0.attn.c_attn.weight").transposed);
  EXPECT_TRUE(names("h.0.mlp.c_proj.weight").transposed);
  EXPECT_FALSE(names("h.0.mlp.c_proj.bias").transposed);
  EXPECT_FALSE(names("wte.weight").transposed);
  EXPECT_EQ(names("h.0.mlp.c_fc.weight").name, "h.0.mlp.c_fc.weight");
}

} // namespace TEST_SOURCE
} // namespace dtensor
