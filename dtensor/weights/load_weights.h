// SPDX-License-Identifier: BSD-3-Clause
// Loads weights from a file directly into the local shards of a rank.
//
//   parallelize_module(*model, mesh, plan);
//   load_weights(*model, *open_weights("model.safetensors"));
//
// Each rank reads only the bytes of its local shards. A WeightNames function
// translates the names of the model to those of the file:
//
//   const auto file = open_weights("model.gguf");
//   load_weights(*model, *file, {.names = gguf_names(*file)});
#pragma once

#include <dtensor/api.h>
#include <dtensor/weights/weight_file.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace dtensor {

/// Source of a model's tensor in a file.
struct WeightSource {
  /// Name in the file. Empty: the tensor is not in the file and is not changed.
  std::string name;
  /// True if the file stores the transposed matrix, as for the weights of
  /// GPT-2's Conv1D.
  bool transposed = false;
  /// Number of attention heads if the file interleaves the rows of each head.
  /// Rows of the first and the second half then alternate, as for queries and
  /// keys of Llama in GGUF. 0: not interleaved.
  int64_t interleaved_heads = 0;
};

/// Maps the full name of a parameter or buffer to its source.
using WeightNames = std::function<WeightSource(const std::string& name)>;

/// Options for load_weights().
struct LoadWeightsOptions {
  /// Translates names. Default: the file has the names of the model.
  WeightNames names = nullptr;
  /// Patterns, with * and ? as in plans, of names in the file that are not
  /// loaded.
  std::vector<std::string> ignored = {};
  /// If true, every name in the file that is not `ignored` must be in the
  /// model.
  bool strict = true;
};

/// Fills the parameters and buffers of `module`. Plain tensors get the full
/// weight, DTensors this rank's local shard. Dtypes are converted; layouts do
/// not change. Ranks do not wait for each other.
///
/// Throws ValueError and changes nothing if the file does not fit. The message
/// lists names that are missing in the file or (if strict) in the model, shapes
/// that differ, and complex weights for real tensors. A weight in an
/// unsupported format also throws ValueError.
DTENSOR_API void load_weights(
    torch::nn::Module& module,
    const WeightFile& file,
    const LoadWeightsOptions& options = {});

/// Returns a translation to llama.cpp's names, for a model with the module
/// names of the Python package transformers. Supports the architectures llama,
/// bert and gpt2, according to the file's "general.architecture". If the file
/// has no output weight, the embedding is used. Throws ValueError for any other
/// architecture.
DTENSOR_API WeightNames gguf_names(const WeightFile& file);

/// Returns a translation that keeps all names, and marks GPT-2's Conv1D weights
/// (c_attn, c_proj, c_fc) as transposed relative to a torch::nn::Linear.
DTENSOR_API WeightNames conv1d_names();

} // namespace dtensor
