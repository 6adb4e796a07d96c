// SPDX-License-Identifier: BSD-3-Clause
// What kind of Llama.
#pragma once

#include <dtensor/weights/weight_file.h>

#include <cstdint>

namespace llama {

/// A small one by default.
struct Config {
  int64_t vocabulary = 256;
  int64_t layers = 2;
  int64_t width = 72;
  int64_t hidden = 96;
  int64_t heads = 9;
  int64_t key_heads = 3;
  int64_t context = 256; // longest sequence
  double rope_base = 10000;
  double epsilon = 1e-5;
  at::ScalarType dtype = at::kFloat;

  int64_t head_size() const {
    return width / heads;
  }
};

/// What a GGUF file says of its model, or the config.json beside safetensors.
Config config_of(const dtensor::WeightFile& file);

} // namespace llama
