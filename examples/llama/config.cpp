// SPDX-License-Identifier: BSD-3-Clause
#include "config.h"

#include "../pretrained.h"

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

Config config_of_json(const nlohmann::json& json) {
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

} // namespace

Config config_of(const WeightFile& file) {
  return file.metadata().count("general.architecture") != 0
      ? config_of_gguf(file)
      : config_of_json(pretrained::config_beside(file.path()));
}

} // namespace llama
