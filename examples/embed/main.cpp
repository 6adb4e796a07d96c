// SPDX-License-Identifier: BSD-3-Clause
// Compares sentences by a MiniLM that is sharded over ranks.
//
//   embed --model build/models/minilm --ranks 3 "A cat sleeps."
//       "A kitten naps." "Stocks fell."
//   embed --check          # a small random model on 1 to 6 ranks
#include "model.h"
#include "wordpiece.h"

#include "../arguments.h"
#include "../check.h"
#include "../pretrained.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <filesystem>

namespace {

using embed::Config;
using torch::Tensor;

struct Embedded {
  Tensor embeddings; // (B, C)
  int64_t collectives = 0;
};

struct Sentences {
  Tensor ids;  // (B, T)
  Tensor mask; // (B, T)
};

Sentences side_by_side(const std::vector<std::vector<int64_t>>& all) {
  std::vector<Tensor> ids, ones;
  for (const auto& tokens : all) {
    ids.push_back(torch::tensor(tokens));
    ones.push_back(torch::ones_like(ids.back(), torch::kBool));
  }
  return {
      torch::nn::utils::rnn::pad_sequence(ids, true),
      torch::nn::utils::rnn::pad_sequence(ones, true)};
}

Embedded run(
    const Config& config,
    int64_t ranks,
    const dtensor::WeightFilePtr& file,
    bool sequence_parallel,
    const Sentences& sentences) {
  Embedded result;
  dtensor::run_ranks(ranks, [&](int64_t rank) {
    dtensor::manual_seed(0);
    const auto mesh = dtensor::init_device_mesh(torch::kCPU, {ranks}, {"tp"});
    auto model = embed::make_model(config, mesh, file, sequence_parallel);
    const c10::InferenceMode inference;
    const dtensor::CommDebugMode comm;
    const auto embeddings = model(sentences.ids, sentences.mask);
    if (rank == 0) {
      result = {embeddings.clone(), comm.get_total_counts()};
    }
  });
  return result;
}

// Expects the same embeddings on any number of ranks. Each layer has two
// collectives and one more follows the embeddings; with sequence parallelism
// four per layer, where queries, keys and values share one all-gather, and two
// more.
void check() {
  const Config config{.dtype = torch::kDouble};
  const auto sentences =
      side_by_side({{1, 2, 3, 4, 5, 6, 7}, {8, 9, 10}, {11}});
  for (const bool sequence_parallel : {false, true}) {
    const auto truth = run(config, 1, nullptr, sequence_parallel, sentences);
    const auto expected =
        sequence_parallel ? 4 * config.layers + 2 : 2 * config.layers + 1;
    for (int64_t ranks = 2; ranks <= 6; ++ranks) {
      const auto mine =
          run(config, ranks, nullptr, sequence_parallel, sentences);
      CHECK_THAT(
          torch::allclose(mine.embeddings, truth.embeddings, 1e-9, 1e-12));
      CHECK_THAT(mine.collectives == expected);
    }
  }
  fmt::print("the same embeddings on 1 to 6 ranks\n");
}

Config config_of(const std::string& folder) {
  const auto json = pretrained::config_beside(folder);
  Config config;
  config.vocabulary = json.at("vocab_size");
  config.layers = json.at("num_hidden_layers");
  config.width = json.at("hidden_size");
  config.hidden = json.at("intermediate_size");
  config.heads = json.at("num_attention_heads");
  config.context = json.at("max_position_embeddings");
  config.types = json.at("type_vocab_size");
  config.epsilon = json.at("layer_norm_eps");
  return config;
}

struct Options {
  std::string model;
  int64_t ranks = 1;
  bool sequence_parallel = false;
  bool check = false;
  std::string out;
  std::vector<std::string> sentences;
};

void compare(const Options& options) {
  const std::filesystem::path folder(options.model);
  const auto config = config_of(options.model);
  const embed::WordPiece tokenizer((folder / "vocab.txt").string());
  std::vector<std::vector<int64_t>> tokens;
  for (const auto& sentence : options.sentences) {
    tokens.push_back(
        tokenizer.encode(sentence, static_cast<size_t>(config.context)));
  }
  const auto sentences = side_by_side(tokens);
  const auto file = dtensor::open_weights(options.model);
  const auto made =
      run(config, options.ranks, file, options.sequence_parallel, sentences);
  const auto alike = made.embeddings.mm(made.embeddings.t());
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    for (size_t j = 0; j < tokens.size(); ++j) {
      fmt::print(
          "{:6.3f} ", alike[row][static_cast<int64_t>(j)].item<double>());
    }
    fmt::print(" {}\n", options.sentences[i]);
  }
  fmt::print("[ranks: {}; collectives: {}]\n", options.ranks, made.collectives);
  if (!options.out.empty()) {
    torch::save(
        std::vector<Tensor>{made.embeddings, sentences.ids, sentences.mask},
        options.out);
  }
}

} // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Compares sentences with a MiniLM model on several ranks.");
  app.add_option("--model", options.model, "folder with safetensors files");
  app.add_option("--ranks", options.ranks, "threads that share the model")
      ->check(CLI::PositiveNumber);
  app.add_flag(
      "--sequence-parallel",
      options.sequence_parallel,
      "shard activations along the sequence");
  app.add_option("--out", options.out, "file for the embeddings");
  app.add_flag("--check", options.check, "try it with a small random model");
  app.add_option("sentences", options.sentences, "sentences to compare");
  CLI11_PARSE(app, argc, argv);
  arguments::refuse_launcher("embed");
  try {
    if (options.check) {
      check();
    } else {
      compare(options);
    }
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
    return 1;
  }
  return 0;
}
