// SPDX-License-Identifier: BSD-3-Clause
#include "load.h"

#include "plan.h"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>

namespace llama {
namespace {

using dtensor::WeightFile;

template <class T>
T about(const WeightFile& file, const std::string& key, T otherwise) {
  const auto found = file.metadata().find("llama." + key);
  return found == file.metadata().end() ? otherwise
                                        : std::get<T>(found->second);
}

Config config_of_gguf(const WeightFile& file) {
  Config config;
  config.vocabulary = file.find("token_embd.weight")->sizes[0];
  config.layers = about<int64_t>(file, "block_count", 0);
  config.width = about<int64_t>(file, "embedding_length", 0);
  config.hidden = about<int64_t>(file, "feed_forward_length", 0);
  config.heads = about<int64_t>(file, "attention.head_count", 0);
  config.key_heads =
      about<int64_t>(file, "attention.head_count_kv", config.heads);
  config.context = about<int64_t>(file, "context_length", 2048);
  config.rope_base = about<double>(file, "rope.freq_base", 10000);
  config.epsilon =
      about<double>(file, "attention.layer_norm_rms_epsilon", 1e-5);
  return config;
}

Config config_of_json(const std::string& path) {
  const auto folder = std::filesystem::is_directory(path)
      ? std::filesystem::path(path)
      : std::filesystem::path(path).parent_path();
  const auto json =
      nlohmann::json::parse(std::ifstream(folder / "config.json"));
  Config config;
  config.vocabulary = json.at("vocab_size");
  config.layers = json.at("num_hidden_layers");
  config.width = json.at("hidden_size");
  config.hidden = json.at("intermediate_size");
  config.heads = json.at("num_attention_heads");
  config.key_heads = json.value("num_key_value_heads", config.heads);
  config.context = json.value("max_position_embeddings", 2048);
  config.rope_base = json.value("rope_theta", 10000.0);
  config.epsilon = json.value("rms_norm_eps", 1e-5);
  return config;
}

// An output that is not in the file is the embedding.
dtensor::WeightNames names_of(const WeightFile& file) {
  const bool is_gguf = file.metadata().count("general.architecture") != 0;
  const auto names = is_gguf
      ? dtensor::gguf_names(file)
      : [](const std::string& name) { return dtensor::WeightSource{name}; };
  const bool has_output = file.find("lm_head.weight") != nullptr;
  return [=](const std::string& name) {
    if (name.rfind("rope_", 0) == 0) {
      return dtensor::WeightSource{}; // computed
    }
    return names(
        !is_gguf && !has_output && name == "lm_head.weight"
            ? "model.embed_tokens.weight"
            : name);
  };
}

} // namespace

Config config_of(const WeightFile& file) {
  return file.metadata().count("general.architecture") != 0
      ? config_of_gguf(file)
      : config_of_json(file.path());
}

Llama make_model(
    const Config& config,
    const dtensor::DeviceMesh& mesh,
    const dtensor::WeightFilePtr& file) {
  Llama model{nullptr};
  {
    const dtensor::DeferredInit scope;
    model = Llama(config);
  }
  dtensor::parallelize_module(*model, mesh, plan_of(config, mesh.size()));
  if (file != nullptr) {
    dtensor::load_weights(
        *model,
        *file,
        {.names = names_of(*file), .ignored = {"rope_freqs.weight"}});
  }
  dtensor::materialize(*model); // what is not loaded
  model->eval();
  return model;
}

} // namespace llama
