// SPDX-License-Identifier: BSD-3-Clause
// What fully_shard makes of one parameter.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/data_parallel/flat_layout_impl.h>
#include <dtensor/layout/mesh.h>
#include <dtensor/layout/placement.h>
#include <dtensor/layout/spec.h>

#include <map>
#include <optional>
#include <string>

namespace dtensor::detail {

/// What begins messages.
constexpr const char* kFullyShard = "fully_shard";

/// The ranks that parameters are cut over, and those that repeat them.
class DataMesh {
 public:
  explicit DataMesh(const DeviceMesh& data) : mesh(data) {}

  DeviceMesh mesh;
  /// Of the mesh's dimensions, the one that cuts: the last.
  int64_t shard_dim() const {
    return mesh.ndim() - 1;
  }
  /// The mesh and one of tensor parallelism side by side, made once for each.
  DeviceMesh with(const DeviceMesh& model, const std::string& parameter);

 private:
  std::map<const void*, DeviceMesh> joined_;
};

struct ParameterLayout {
  /// Of the parameter, on all of its meshes.
  SpecPtr spec;
  /// Of what operators get: on the mesh of tensor parallelism, or null for a
  /// plain tensor.
  SpecPtr whole;
  /// What this rank has of `whole`, and how it is cut.
  CutTensor cut;
  /// Which of the cuts is this rank's.
  size_t rank = 0;
};

/// `wanted` is what shard_placement_fn says. Throws as fully_shard.
ParameterLayout layout_of(
    const at::Tensor& parameter,
    const std::string& name,
    DataMesh& data,
    const std::optional<Placement>& wanted);

/// This rank's part of `tensor`, a parameter of that layout or its gradient,
/// in memory of its own.
at::Tensor part_of(const at::Tensor& tensor, const ParameterLayout& layout);

} // namespace dtensor::detail
