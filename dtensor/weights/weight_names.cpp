// SPDX-License-Identifier: BSD-3-Clause
// Names of the tensors of well-known models in other libraries.
#include <dtensor/weights/load_weights.h>

#include <dtensor/error.h>
#include <dtensor/weights/json_document_impl.h>

#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

namespace dtensor {
namespace {

// Pairs of name prefixes; "N" stands for the number of a layer.
using Rename = std::pair<const char*, const char*>;
using Renames = std::span<const Rename>;

constexpr std::array<Rename, 12> kLlama = {
    {{"model.embed_tokens.", "token_embd."},
     {"model.layers.N.input_layernorm.", "blk.N.attn_norm."},
     {"model.layers.N.self_attn.q_proj.", "blk.N.attn_q."},
     {"model.layers.N.self_attn.k_proj.", "blk.N.attn_k."},
     {"model.layers.N.self_attn.v_proj.", "blk.N.attn_v."},
     {"model.layers.N.self_attn.o_proj.", "blk.N.attn_output."},
     {"model.layers.N.post_attention_layernorm.", "blk.N.ffn_norm."},
     {"model.layers.N.mlp.gate_proj.", "blk.N.ffn_gate."},
     {"model.layers.N.mlp.up_proj.", "blk.N.ffn_up."},
     {"model.layers.N.mlp.down_proj.", "blk.N.ffn_down."},
     {"model.norm.", "output_norm."},
     {"lm_head.", "output."}}};

constexpr std::array<Rename, 12> kBert = {
    {{"embeddings.word_embeddings.", "token_embd."},
     {"embeddings.token_type_embeddings.", "token_types."},
     {"embeddings.position_embeddings.", "position_embd."},
     {"embeddings.LayerNorm.", "token_embd_norm."},
     {"encoder.layer.N.attention.self.query.", "blk.N.attn_q."},
     {"encoder.layer.N.attention.self.key.", "blk.N.attn_k."},
     {"encoder.layer.N.attention.self.value.", "blk.N.attn_v."},
     {"encoder.layer.N.attention.output.dense.", "blk.N.attn_output."},
     {"encoder.layer.N.attention.output.LayerNorm.", "blk.N.attn_output_norm."},
     {"encoder.layer.N.intermediate.dense.", "blk.N.ffn_up."},
     {"encoder.layer.N.output.dense.", "blk.N.ffn_down."},
     {"encoder.layer.N.output.LayerNorm.", "blk.N.layer_output_norm."}}};

constexpr std::array<Rename, 10> kGpt2 = {
    {{"transformer.wte.", "token_embd."},
     {"transformer.wpe.", "position_embd."},
     {"transformer.h.N.ln_1.", "blk.N.attn_norm."},
     {"transformer.h.N.attn.c_attn.", "blk.N.attn_qkv."},
     {"transformer.h.N.attn.c_proj.", "blk.N.attn_output."},
     {"transformer.h.N.ln_2.", "blk.N.ffn_norm."},
     {"transformer.h.N.mlp.c_fc.", "blk.N.ffn_up."},
     {"transformer.h.N.mlp.c_proj.", "blk.N.ffn_down."},
     {"transformer.ln_f.", "output_norm."},
     {"lm_head.", "output."}}};

// Returns `name` with the prefix `from` replaced by `to`, or nothing if it has
// another prefix.
std::optional<std::string>
renamed(const std::string& name, std::string_view from, std::string to) {
  const auto number = from.find(".N.");
  if (number == from.npos) {
    return name.compare(0, from.size(), from) == 0
        ? std::optional(to + name.substr(from.size()))
        : std::nullopt;
  }
  const auto before = from.substr(0, number + 1);
  const auto after = from.substr(number + 2);
  const auto end = name.find_first_not_of("0123456789", before.size());
  if (name.compare(0, before.size(), before) != 0 || end == name.npos ||
      end == before.size() || name.compare(end, after.size(), after) != 0) {
    return std::nullopt;
  }
  const auto layer = name.substr(before.size(), end - before.size());
  return to.replace(to.find(".N.") + 1, 1, layer) +
      name.substr(end + after.size());
}

std::string renamed(const std::string& name, Renames renames) {
  for (const auto& [from, to] : renames) {
    if (auto found = renamed(name, from, to)) {
      return *found;
    }
  }
  return name;
}

constexpr int64_t kMostHeads = 1 << 20;

int64_t count_in(const WeightFile& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  const auto* count = found == file.metadata().end()
      ? nullptr
      : std::get_if<int64_t>(&found->second);
  DTENSOR_CHECK_VALUE(
      count != nullptr && *count > 0 && *count <= kMostHeads,
      "[gguf_names] {} has no valid {}. Pass a file written by llama.cpp.",
      file.path(),
      key);
  return *count;
}

std::string architecture_of(const WeightFile& file) {
  const auto found = file.metadata().find("general.architecture");
  const auto* name = found == file.metadata().end()
      ? nullptr
      : std::get_if<std::string>(&found->second);
  return name == nullptr ? std::string() : *name;
}

// Returns true for the weight and the bias of a module.
bool is_of_module(const std::string& name, const std::string& module) {
  return name.ends_with(module + ".weight") || name.ends_with(module + ".bias");
}

} // namespace

WeightNames gguf_names(const WeightFile& file) {
  const auto architecture = architecture_of(file);
  const bool is_llama = architecture == "llama";
  DTENSOR_CHECK_VALUE(
      is_llama || architecture == "bert" || architecture == "gpt2",
      "[gguf_names] {} has architecture {}, which is not supported (supported: "
      "llama, bert, gpt2). Pass a WeightNames function of your own.",
      file.path(),
      detail::quoted_json(architecture));
  const auto renames = is_llama ? Renames(kLlama)
      : architecture == "bert"  ? Renames(kBert)
                                : Renames(kGpt2);
  int64_t heads = 0;
  int64_t key_heads = 0;
  if (is_llama) {
    heads = count_in(file, "llama.attention.head_count");
    key_heads = count_in(file, "llama.attention.head_count_kv");
  }
  const bool is_tied = file.find("output.weight") == nullptr;
  return [=](const std::string& name) {
    WeightSource source{renamed(name, renames)};
    if (is_tied && source.name == "output.weight") {
      source.name = "token_embd.weight";
    }
    // llama.cpp reorders the rows of both weights and biases.
    if (is_llama && is_of_module(source.name, ".attn_q")) {
      source.interleaved_heads = heads;
    } else if (is_llama && is_of_module(source.name, ".attn_k")) {
      source.interleaved_heads = key_heads;
    }
    return source;
  };
}

WeightNames conv1d_names() {
  return [](const std::string& name) {
    WeightSource source{name};
    for (const auto* module : {".c_attn", ".c_proj", ".c_fc"}) {
      source.transposed |= name.ends_with(std::string(module) + ".weight");
    }
    return source;
  };
}

} // namespace dtensor
