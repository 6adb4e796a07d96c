// SPDX-License-Identifier: BSD-3-Clause
// Shared code of programs that load published models: reads the configuration
// beside the weights, and loads a model's shards.
#pragma once

#include <dtensor/dtensor.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <string>

namespace pretrained {

/// Returns the config.json in the folder `path`, or beside the file.
inline nlohmann::json config_beside(const std::string& path) {
  const auto folder = std::filesystem::is_directory(path)
      ? std::filesystem::path(path)
      : std::filesystem::path(path).parent_path();
  return nlohmann::json::parse(std::ifstream(folder / "config.json"));
}

/// Returns a model sharded over `mesh`, loaded from `file`. Parameters that are
/// not in the file are random, and equal for any number of ranks. Without a
/// file, all parameters are.
template <class Model, class Config>
Model make(
    const Config& config,
    const dtensor::DeviceMesh& mesh,
    const dtensor::ParallelizePlan& plan,
    const dtensor::WeightFilePtr& file,
    const dtensor::LoadWeightsOptions& options) {
  Model model{nullptr};
  {
    const dtensor::DeferredInit scope;
    model = Model(config);
  }
  dtensor::parallelize_module(*model, mesh, plan);
  if (file != nullptr) {
    dtensor::load_weights(*model, *file, options);
  }
  dtensor::materialize(*model);
  model->eval();
  return model;
}

} // namespace pretrained
