// SPDX-License-Identifier: BSD-3-Clause
// Reads BERT and GPT-2 files written by the gguf package into torch::nn models
// with the module names of the Python package transformers.
#include <dtensor/parallel/linear_styles.h>
#include <dtensor/parallel/style.h>
#include <dtensor/weights/load_weights.h>
#include <tests/parallel/modules.h>
#include <tests/weights/files.h>

#include <sstream>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test_modules;
using test_weights::saved_tensors;
using test_weights::written_files;
using ModulePtr = std::shared_ptr<torch::nn::Module>;
namespace nn = torch::nn;

constexpr int64_t kWidth = 12;
constexpr int64_t kHidden = 20;
constexpr int64_t kHeadSize = 4;

// Registers `child` under a dotted name, in parent modules without other
// members.
void put(nn::Module& root, const std::string& path, const ModulePtr& child) {
  auto* parent = &root;
  std::vector<std::string> names;
  std::istringstream parts(path);
  for (std::string name; std::getline(parts, name, '.');) {
    names.push_back(name);
  }
  for (size_t i = 0; i + 1 < names.size(); ++i) {
    auto next = parent->named_children();
    parent = next.contains(names[i])
        ? next[names[i]].get()
        : parent->register_module(names[i], std::make_shared<nn::Module>())
              .get();
  }
  parent->register_module(names.back(), child);
}

ModulePtr linear(int64_t in, int64_t out) {
  return nn::Linear(in, out).ptr();
}

ModulePtr table(int64_t rows) {
  return nn::Embedding(rows, kWidth).ptr();
}

ModulePtr norm() {
  return nn::LayerNorm(nn::LayerNormOptions({kWidth})).ptr();
}

ModulePtr bert() {
  auto model = std::make_shared<nn::Module>();
  put(*model, "embeddings.word_embeddings", table(10));
  put(*model, "embeddings.token_type_embeddings", table(2));
  put(*model, "embeddings.position_embeddings", table(7));
  put(*model, "embeddings.LayerNorm", norm());
  for (const std::string layer : {"encoder.layer.0.", "encoder.layer.1."}) {
    for (const auto* part : {"query", "key", "value"}) {
      put(*model, layer + "attention.self." + part, linear(kWidth, kWidth));
    }
    put(*model, layer + "attention.output.dense", linear(kWidth, kWidth));
    put(*model, layer + "attention.output.LayerNorm", norm());
    put(*model, layer + "intermediate.dense", linear(kWidth, kHidden));
    put(*model, layer + "output.dense", linear(kHidden, kWidth));
    put(*model, layer + "output.LayerNorm", norm());
  }
  return model;
}

ParallelizePlan bert_plan() {
  return {
      {"embeddings.word_embeddings",
       RowwiseParallel({.input_layouts = Replicate()})},
      {"encoder.layer.*.attention.self.*",
       ColwiseParallel({.multiple_of = kHeadSize})},
      {"encoder.layer.*.attention.output.dense",
       RowwiseParallel({.multiple_of = kHeadSize})},
      {"encoder.layer.*.intermediate.dense", ColwiseParallel()},
      {"encoder.layer.*.output.dense", RowwiseParallel()}};
}

ModulePtr gpt2(bool with_head) {
  auto model = std::make_shared<nn::Module>();
  put(*model, "transformer.wte", table(10));
  put(*model, "transformer.wpe", table(7));
  for (const std::string layer : {"transformer.h.0.", "transformer.h.1."}) {
    put(*model, layer + "ln_1", norm());
    put(*model, layer + "attn.c_attn", linear(kWidth, 3 * kWidth));
    put(*model, layer + "attn.c_proj", linear(kWidth, kWidth));
    put(*model, layer + "ln_2", norm());
    put(*model, layer + "mlp.c_fc", linear(kWidth, kHidden));
    put(*model, layer + "mlp.c_proj", linear(kHidden, kWidth));
  }
  put(*model, "transformer.ln_f", norm());
  if (with_head) {
    put(*model,
        "lm_head",
        nn::Linear(nn::LinearOptions(kWidth, 10).bias(false)).ptr());
  }
  return model;
}

ParallelizePlan gpt2_plan() {
  return {
      {"transformer.wte", ColwiseParallel()},
      {"transformer.h.*.attn.c_attn",
       ColwiseParallel({.multiple_of = kHeadSize, .fused_projections = 3})},
      {"transformer.h.*.attn.c_proj",
       RowwiseParallel({.multiple_of = kHeadSize})},
      {"transformer.h.*.mlp.c_fc", ColwiseParallel()},
      {"transformer.h.*.mlp.c_proj", RowwiseParallel()}};
}

using Names = WeightNames (*)(const WeightFile& file);

// Loads the file into plain models and into models sharded over any number of
// ranks. Expects every parameter to equal Python's under that name.
void expect_read(
    const std::string& name,
    const std::function<ModulePtr()>& make,
    const ParallelizePlan& plan,
    const std::string& saved,
    Names names) {
  const auto folder = written_files().folder + "/";
  auto truth = saved_tensors(folder + saved);
  truth["lm_head.weight"] = truth["transformer.wte.weight"];
  for (const int64_t ranks : {0, 1, 2, 3, 4}) {
    run_ranks(std::max<int64_t>(ranks, 1), [&] {
      const auto model = make();
      if (ranks > 0) {
        const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
        parallelize_module(*model, mesh, plan);
      }
      const auto file = open_weights(folder + name);
      load_weights(*model, *file, {.names = names(*file)});
      for (const auto& item : model->named_parameters()) {
        EXPECT_TRUE(at::equal(full(item.value()), truth.at(item.key())))
            << name << ", " << ranks << " ranks: " << item.key();
      }
    });
  }
}

class WeightFamilies : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!written_files().why_not.empty()) {
      GTEST_SKIP() << written_files().why_not;
    }
  }
};

TEST_F(WeightFamilies, BertInGguf) {
  expect_read(
      "small_bert.gguf", bert, bert_plan(), "small_bert.pt", gguf_names);
}

// llama.cpp stores Conv1D matrices like those of a Linear, and stores no output
// weight.
TEST_F(WeightFamilies, Gpt2InGguf) {
  expect_read(
      "small_gpt2.gguf",
      [] { return gpt2(/*with_head=*/true); },
      gpt2_plan(),
      "small_gpt2.pt",
      gguf_names);
}

// The published GPT-2 file has transposed matrices, including square ones.
TEST_F(WeightFamilies, Gpt2AsPublished) {
  expect_read(
      "small_gpt2.safetensors",
      [] { return gpt2(/*with_head=*/false); },
      gpt2_plan(),
      "small_gpt2.pt",
      [](const WeightFile&) { return conv1d_names(); });
}

} // namespace TEST_SOURCE
} // namespace dtensor
