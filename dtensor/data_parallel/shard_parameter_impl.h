// SPDX-License-Identifier: BSD-3-Clause
// Layouts of parameters that fully_shard shards.
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

/// Prefix of error messages.
constexpr const char* kFullyShard = "fully_shard";

/// Mesh of data parallelism: parameters are sharded over its last dimension,
/// and replicated over the other one, if any.
class DataMesh {
 public:
  explicit DataMesh(const DeviceMesh& data) : mesh(data) {}

  DeviceMesh mesh;
  /// Mesh dimension that parameters are sharded over: the last.
  int64_t shard_dim() const {
    return mesh.ndim() - 1;
  }
  /// Concatenates this mesh and `model`, a mesh of tensor parallelism. Each
  /// `model` is concatenated once.
  DeviceMesh with(const DeviceMesh& model, const std::string& parameter);

 private:
  std::map<const void*, DeviceMesh> joined_;
};

struct ParameterLayout {
  /// Layout of the parameter, on all of its meshes.
  SpecPtr spec;
  /// Layout of the unsharded parameter: on the mesh of tensor parallelism, or
  /// null for a plain tensor.
  SpecPtr unsharded;
  /// Local tensor of `unsharded`, and its shards over data-parallel ranks.
  ShardedSizes sharded;
  /// Index of this rank's shard in `sharded`.
  size_t rank = 0;
};

/// Computes the layout of `parameter`, with the placement `wanted` of
/// shard_placement_fn. Throws as fully_shard().
ParameterLayout layout_of(
    const at::Tensor& parameter,
    const std::string& name,
    DataMesh& data,
    const std::optional<Placement>& wanted);

/// Returns a copy of this rank's shard of `tensor`, which is a parameter with
/// layout `layout` or its gradient.
at::Tensor copy_shard(const at::Tensor& tensor, const ParameterLayout& layout);

} // namespace dtensor::detail
