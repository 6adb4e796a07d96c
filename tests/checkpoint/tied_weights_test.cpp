// SPDX-License-Identifier: BSD-3-Clause
// Weights that several modules share. Files hold such a weight once. A weight
// is loaded from files that hold it once or under each name.
#include <dtensor/checkpoint/checkpoint.h>
#include <dtensor/data_parallel/fully_shard.h>
#include <dtensor/data_parallel/replicate.h>
#include <dtensor/deferred/deferred_init.h>
#include <dtensor/parallel/tie_weights.h>
#include <dtensor/weights/load_weights.h>
#include <tests/parallel/modules.h>
#include <tests/weights/files.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <sstream>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test_modules;
using test_weights::Folder;
using test_weights::safetensors_of;
using ::testing::HasSubstr;

struct LanguageModelImpl : torch::nn::Module {
  LanguageModelImpl()
      : embedding(register_module("embedding", torch::nn::Embedding(11, 6))),
        head(register_module(
            "head",
            torch::nn::Linear(torch::nn::LinearOptions(6, 11).bias(false)))) {}
  torch::nn::Embedding embedding;
  torch::nn::Linear head;
};
TORCH_MODULE(LanguageModel);

LanguageModel tied(uint64_t seed) {
  auto model = filled(LanguageModel(), seed);
  tie_weights(*model->head, *model->embedding);
  return model;
}

LanguageModel parallel(LanguageModel model, int64_t ranks) {
  parallelize_module(
      *model,
      init_device_mesh(at::kCPU, {ranks}, {"tp"}),
      {{"embedding", RowwiseParallel()},
       {"head", ColwiseParallel({.output_layouts = Replicate()})}});
  return model;
}

std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> names;
  const auto file = open_weights(path);
  for (const auto& weight : file->weights()) {
    names.push_back(weight.name);
  }
  return names;
}

std::string text_of(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(TiedWeights, AreSavedOnceAndLoadedIntoAnyModel) {
  for (const bool full : {false, true}) {
    const Folder folder;
    const auto path = folder / "saved";
    const auto truth = uniform({11, 6}, 1);
    run_ranks(2, [&] {
      auto model = parallel(tied(1), 2);
      torch::optim::AdamW adamw(unique_parameters(*model), 1e-3);
      save_checkpoint(
          path, {.model = model.get(), .optimizer = &adamw}, {.full = full});
    });
    const auto names = names_in(path);
    EXPECT_EQ(std::count(names.begin(), names.end(), "embedding.weight"), 1);
    EXPECT_EQ(std::count(names.begin(), names.end(), "head.weight"), 0);
    for (const bool is_tied : {true, false}) {
      run_ranks(3, [&] {
        auto model =
            parallel(is_tied ? tied(5) : filled(LanguageModel(), 5), 3);
        load_checkpoint(path, {.model = model.get()});
        expect_close(model->embedding->weight, truth, "embedding");
        expect_close(model->head->weight, truth, "head");
      });
    }
  }
}

TEST(TiedWeights, FurtherNamesStandInTheMetadata) {
  const Folder folder;
  run_ranks(2, [&] {
    auto model = parallel(tied(1), 2);
    save_checkpoint(folder / "parts", {.model = model.get()});
    save_checkpoint(folder / "full", {.model = model.get()}, {.full = true});
    // Each tensor in a file of its own.
    save_checkpoint(
        folder / "files",
        {.model = model.get()},
        {.full = true, .max_file_bytes = 1});
  });
  EXPECT_THAT(
      text_of(folder / "parts/checkpoint.json"),
      HasSubstr("\"tied\": {\n    \"head.weight\": \"embedding.weight\""));
  const auto file = open_weights(folder / "full/model.safetensors");
  EXPECT_EQ(
      std::get<std::string>(file->metadata().at("head.weight")),
      "embedding.weight");
  run_ranks(2, [&] { // without checkpoint.json
    auto model = parallel(filled(LanguageModel(), 5), 2);
    load_weights(*model, *open_weights(folder / "full/model.safetensors"));
    expect_close(model->head->weight, uniform({11, 6}, 1), "head");
    auto again = parallel(tied(5), 2);
    load_weights(*again, *open_weights(folder / "files"));
    expect_close(again->head->weight, uniform({11, 6}, 1), "head");
  });
}

// Checkpoints in which each name has its own copy can be loaded.
TEST(TiedWeights, AreLoadedFromCheckpointsThatHaveThemTwice) {
  const Folder folder;
  const auto path = folder / "twice";
  run_ranks(2, [&] {
    auto both = filled(LanguageModel(), 1);
    const torch::NoGradGuard no_grad;
    both->head->weight.copy_(both->embedding->weight);
    save_checkpoint(path, {.model = both.get()});
    auto model = parallel(tied(5), 2);
    load_checkpoint(path, {.model = model.get()});
    expect_close(model->head->weight, uniform({11, 6}, 1), "head");
    load_weights(*parallel(tied(6), 2), *open_weights(path));
  });
  ASSERT_EQ(names_in(path).size(), 2);
}

TEST(TiedWeights, WithTwoValuesInAFileAreRefused) {
  const Folder folder;
  const auto path = folder / "other";
  run_ranks(2, [&] {
    auto both = filled(LanguageModel(), 1);
    save_checkpoint(path, {.model = both.get()});
    auto model = parallel(tied(5), 2);
    EXPECT_EQ(
        error_of([&] { load_checkpoint(path, {.model = model.get()}); }),
        "[load_checkpoint] \"embedding.weight\" and \"head.weight\" have "
        "different values, but are one tensor in the model. Load the one to "
        "keep with load_weights(), leaving the other out of `names`.");
    EXPECT_EQ(
        error_of([&] { load_weights(*model, *open_weights(path)); }),
        "[load_weights] " + path +
            ": \"embedding.weight\" and \"head.weight\" have different values, "
            "but \"embedding.weight\" and \"head.weight\" are one tensor in "
            "the model. Leave out one of them in `names`, or use a model that "
            "does not tie them.");
    expect_close(model->head->weight, uniform({11, 6}, 5), "unchanged");
    const auto leave_out = [](const std::string& name) {
      return WeightSource{name == "head.weight" ? "" : name};
    };
    load_weights(
        *model,
        *open_weights(path),
        {.names = leave_out, .ignored = {"head.weight"}});
    expect_close(model->head->weight, uniform({11, 6}, 1), "the one kept");
  });
}

TEST(TiedWeights, StandOnceInFilesOfOthers) {
  const Folder folder;
  const auto truth = uniform({11, 6}, 1).to(at::kFloat);
  for (const std::string name : {"embedding.weight", "head.weight"}) {
    const auto path =
        folder.write(name + ".safetensors", safetensors_of({{name, truth}}));
    auto model = tied(5);
    load_weights(*model, *open_weights(path));
    EXPECT_TRUE(at::equal(model->head->weight, truth.to(at::kDouble)));
    model = tied(6);
    run_ranks(1, [&] { load_checkpoint(path, {.model = model.get()}); });
    EXPECT_TRUE(at::equal(model->head->weight, truth.to(at::kDouble)));
  }
  auto untied = filled(LanguageModel(), 5);
  EXPECT_THAT(
      error_of([&] {
        load_weights(
            *untied, *open_weights(folder / "embedding.weight.safetensors"));
      }),
      HasSubstr("not in the file: head.weight."));
  EXPECT_TRUE(at::equal(untied->embedding->weight, uniform({11, 6}, 5)));
}

// Only one of the two files of an index has the shared weight.
TEST(TiedWeights, StandInOneFileOfAnIndex) {
  const Folder folder;
  const auto truth = uniform({11, 6}, 1).to(at::kFloat);
  folder.write("a.safetensors", safetensors_of({{"embedding.weight", truth}}));
  folder.write("b.safetensors", safetensors_of({{"other", truth}}));
  const auto index = folder.write(
      "model.safetensors.index.json",
      R"({"weight_map": {"embedding.weight": "a.safetensors",
                         "other": "b.safetensors"}})");
  auto model = tied(5);
  load_weights(*model, *open_weights(index), {.ignored = {"other"}});
  EXPECT_TRUE(at::equal(model->head->weight, truth.to(at::kDouble)));
}

template <class Number>
void put(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
}
void put_text(std::string& bytes, const std::string& text) {
  put(bytes, uint64_t{text.size()});
  bytes += text;
}

// Returns a GGUF file of architecture gpt2 with tensors of 11 rows of 6
// numbers.
std::string gguf_of(const std::map<std::string, at::Tensor>& tensors) {
  std::string bytes = "GGUF";
  put(bytes, uint32_t{3});
  put(bytes, uint64_t{tensors.size()});
  put(bytes, uint64_t{1});
  put_text(bytes, "general.architecture");
  put(bytes, uint32_t{8}); // type string
  put_text(bytes, "gpt2");
  constexpr uint64_t kAligned = 288; // 264 bytes, padded
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    put_text(bytes, name);
    put(bytes, uint32_t{2});
    put(bytes, uint64_t{6});
    put(bytes, uint64_t{11});
    put(bytes, uint32_t{0}); // F32
    put(bytes, uint64_t{data.size()});
    data.append(
        static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
    data.resize((data.size() + kAligned - 1) / kAligned * kAligned);
  }
  bytes.resize((bytes.size() + 31) / 32 * 32);
  return bytes + data;
}

struct Gpt2Impl : torch::nn::Module {
  struct BodyImpl : torch::nn::Module {
    torch::nn::Embedding wte =
        register_module("wte", torch::nn::Embedding(11, 6));
  };
  std::shared_ptr<BodyImpl> body =
      register_module("transformer", std::make_shared<BodyImpl>());
  torch::nn::Linear head = register_module(
      "lm_head",
      torch::nn::Linear(torch::nn::LinearOptions(6, 11).bias(false)));
};

TEST(TiedWeights, OfGgufFilesStandUnderTokenEmbd) {
  const Folder folder;
  const auto truth = uniform({11, 6}, 1).to(at::kFloat);
  const auto other = uniform({11, 6}, 2).to(at::kFloat);
  const auto once = open_weights(
      folder.write("once.gguf", gguf_of({{"token_embd.weight", truth}})));
  const auto twice = open_weights(folder.write(
      "twice.gguf",
      gguf_of({{"output.weight", truth}, {"token_embd.weight", truth}})));
  const auto differ = open_weights(folder.write(
      "differ.gguf",
      gguf_of({{"output.weight", other}, {"token_embd.weight", truth}})));
  for (const auto& file : {once, twice}) {
    for (const bool is_tied : {true, false}) {
      Gpt2Impl model;
      if (is_tied) {
        tie_weights(*model.head, *model.body->wte);
      }
      load_weights(model, *file, {.names = gguf_names(*file)});
      EXPECT_TRUE(at::equal(model.head->weight, truth));
      EXPECT_TRUE(at::equal(model.body->wte->weight, truth));
    }
  }
  Gpt2Impl model;
  load_weights(model, *differ, {.names = gguf_names(*differ)});
  EXPECT_TRUE(at::equal(model.head->weight, other));
  tie_weights(*model.head, *model.body->wte);
  EXPECT_THAT(
      error_of([&] {
        load_weights(model, *differ, {.names = gguf_names(*differ)});
      }),
      HasSubstr(
          ": \"token_embd.weight\" and \"output.weight\" have different "
          "values, but \"transformer.wte.weight\" and \"lm_head.weight\" are "
          "one tensor in the model."));
}

// Checks that `call` is refused for a model in which the head was tied by an
// assignment.
void expect_refused(
    const std::string& where,
    const std::function<void(LanguageModel&)>& call) {
  run_ranks(1, [&] {
    auto model = filled(LanguageModel(), 1);
    model->head->weight = model->embedding->weight;
    EXPECT_THAT(
        error_of([&] { call(model); }),
        HasSubstr(
            "[" + where +
            "] the weight of module \"head\" of type torch::nn::LinearImpl is "
            "not "
            "the parameter that is registered under that name"));
  });
}

TEST(AMemberThatIsNotRegistered, IsRefusedByFilesAndUnits) {
  const Folder folder;
  run_ranks(
      1, [&] { save_checkpoint(folder / "good", {.model = tied(1).get()}); });
  expect_refused("save_checkpoint", [&](auto& model) {
    save_checkpoint(folder / "bad", {.model = model.get()});
  });
  expect_refused("load_checkpoint", [&](auto& model) {
    load_checkpoint(folder / "good", {.model = model.get()});
  });
  expect_refused("load_weights", [&](auto& model) {
    load_weights(*model, *open_weights(folder / "good"));
  });
  expect_refused("fully_shard", [&](auto& model) {
    fully_shard(*model, {.mesh = init_device_mesh(at::kCPU, {1}, {"dp"})});
  });
  expect_refused("replicate", [&](auto& model) {
    replicate(*model, init_device_mesh(at::kCPU, {1}, {"dp"}));
  });
  expect_refused("materialize", [&](auto& model) { materialize(*model); });
}

// A file may hold a weight under both of its names.
TEST(TiedWeights, AreAllocatedOnce) {
  const Folder folder;
  const auto truth = at::arange(6, at::kFloat);
  StateDict both;
  both.insert("a", truth);
  both.insert("b", truth.clone());
  save_checkpoint(folder / "one", {.tensors = &both});
  const auto shared = at::empty({6}, at::kMeta);
  StateDict state;
  state.insert("a", shared);
  state.insert("b", shared);
  load_checkpoint(folder / "one", {.tensors = &state});
  EXPECT_TRUE(state["a"].is_same(state["b"]));
  EXPECT_TRUE(at::equal(shared, truth));
}

TEST(TiedWeights, AreDrawnOnceByADeferredModel) {
  run_ranks(2, [] {
    torch::manual_seed(7);
    LanguageModel model(nullptr);
    {
      const DeferredInit scope;
      model = LanguageModel();
      tie_weights(*model->head, *model->embedding);
    }
    parallel(model, 2);
    materialize(*model);
    EXPECT_TRUE(model->head->weight.is_same(model->embedding->weight));
    const auto registered = model->named_parameters();
    EXPECT_TRUE(registered["head.weight"].is_same(model->head->weight));
    EXPECT_FALSE(model->head->weight.is_meta());
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
