// SPDX-License-Identifier: BSD-3-Clause
// What programs share that read models of others: the description beside the
// weights, and a model that is filled with its parts of them.
#pragma once

#include <dtensor/dtensor.h>
#include <torch/torch.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <string>

namespace pretrained {

/// The config.json in the folder `path`, or beside the file.
inline nlohmann::json config_beside(const std::string& path) {
  const auto folder = std::filesystem::is_directory(path)
      ? std::filesystem::path(path)
      : std::filesystem::path(path).parent_path();
  return nlohmann::json::parse(std::ifstream(folder / "config.json"));
}

/// A model whose parameters this rank of `mesh` has its parts of, from `file`;
/// what is not in it, or all without a file, is random, and the same on any
/// number of ranks.
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
