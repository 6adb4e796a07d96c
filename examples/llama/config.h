// SPDX-License-Identifier: BSD-3-Clause
// Sizes of a Llama.
#pragma once

#include <dtensor/weights/weight_file.h>

#include <cstdint>

namespace llama {

/// Defaults are a small model.
struct Config {
  int64_t vocabulary = 256;
  int64_t layers = 2;
  int64_t width = 72;
  int64_t hidden = 96;
  int64_t heads = 9;
  int64_t key_heads = 3;
  int64_t context = 256; // maximum sequence length
  double rope_base = 10000;
  double epsilon = 1e-5;
  at::ScalarType dtype = at::kFloat;

  int64_t head_size() const {
    return width / heads;
  }
};

/// Returns the configuration in a GGUF file, or in the config.json beside
/// safetensors.
Config config_of(const dtensor::WeightFile& file);

} // namespace llama
