// SPDX-License-Identifier: BSD-3-Clause
#include "load.h"

#include "../pretrained.h"
#include "plan.h"

namespace llama {
namespace {

using dtensor::WeightFile;

// If the file has no output weight, the embedding is used.
dtensor::WeightNames names_of(const WeightFile& file) {
  const bool is_gguf = file.metadata().count("general.architecture") != 0;
  const auto names = is_gguf
      ? dtensor::gguf_names(file)
      : [](const std::string& name) { return dtensor::WeightSource{name}; };
  const bool has_output = file.find("lm_head.weight") != nullptr;
  return [=](const std::string& name) {
    if (name.rfind("rope.", 0) == 0) {
      return dtensor::WeightSource{}; // computed, not loaded
    }
    return names(
        !is_gguf && !has_output && name == "lm_head.weight"
            ? "model.embed_tokens.weight"
            : name);
  };
}

} // namespace

dtensor::LoadWeightsOptions load_options(const dtensor::WeightFilePtr& file) {
  return {
      .names = file == nullptr ? nullptr : names_of(*file),
      .ignored = {"rope_freqs.weight"}};
}

Llama make_model(
    const Config& config,
    const dtensor::DeviceMesh& mesh,
    const dtensor::WeightFilePtr& file) {
  return pretrained::make<Llama>(
      config, mesh, plan_of(config, mesh.size()), file, load_options(file));
}

} // namespace llama
