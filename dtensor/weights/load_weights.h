// SPDX-License-Identifier: BSD-3-Clause
// Weights from a file straight into the parts that a rank has.
//
//   parallelize_module(*model, mesh, plan);
//   load_weights(*model, *open_weights("model.safetensors"));
//
// Each rank reads the bytes alone that its parts need. What a file calls
// otherwise is found by a function of names:
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

/// Where a tensor of a model is in a file.
struct WeightSource {
  /// Its name there; empty: it is not in the file, and stays as it is.
  std::string name;
  /// It stands there with its two dimensions exchanged, as the weights of
  /// GPT-2's Conv1D.
  bool transposed = false;
  /// Of a weight of so many heads: of each, the first and the second half of
  /// the rows stand there in turn, as queries and keys of Llama in GGUF. 0: no.
  int64_t interleaved_heads = 0;
};

/// Full name of a parameter or buffer -> where it is.
using WeightNames = std::function<WeightSource(const std::string& name)>;

/// Options of load_weights.
struct LoadWeightsOptions {
  /// Default: under the same name.
  WeightNames names = nullptr;
  /// Names in the file that the model has no place for, with * and ? as in
  /// plans.
  std::vector<std::string> ignored = {};
  /// Everything else in the file has its place in the model.
  bool strict = true;
};

/// Fills the parameters and buffers of `module`, plain ones whole, DTensors
/// with this rank's part; dtypes are converted, layouts stay. No rank waits for
/// another. Throws ValueError, and changes nothing: one error that lists all
/// names that the file does not have, that the model does not (if strict),
/// whose shapes differ, and that are complex for a real tensor; a weight in a
/// format that cannot be read.
DTENSOR_API void load_weights(
    torch::nn::Module& module,
    const WeightFile& file,
    const LoadWeightsOptions& options = {});

/// Of a model whose modules are named as in the Python package transformers,
/// the names of llama.cpp: of architectures llama, bert and gpt2, which the
/// file names ("general.architecture"). An output that the file does not have
/// is the embedding. Throws ValueError for another architecture.
DTENSOR_API WeightNames gguf_names(const WeightFile& file);

/// As in the file, but for GPT-2's Conv1D weights (c_attn, c_proj, c_fc), which
/// a torch::nn::Linear has the other way round.
DTENSOR_API WeightNames conv1d_names();

} // namespace dtensor
