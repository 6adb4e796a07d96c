// SPDX-License-Identifier: BSD-3-Clause
// MeshScope: the mesh of all calls that name none.
//
//   const MeshScope scope(init_device_mesh(torch::kCPU, {4}));
//   auto w = distribute_tensor(torch::randn({8, 6}), {}, {Shard(0)});
//   parallelize_module(*model, {{"w1", ColwiseParallel()}});
//
// Python: a DeviceMesh as context manager.
#pragma once

#include <dtensor/api.h>
#include <dtensor/layout/mesh.h>

namespace dtensor {

/// While it lives, `mesh` is that of this rank's calls that are given none (or
/// an undefined one). Scopes nest. Throws ValueError for an undefined mesh,
/// RuntimeError for another rank's.
class DTENSOR_API MeshScope {
 public:
  explicit MeshScope(const DeviceMesh& mesh);
  ~MeshScope();
  MeshScope(const MeshScope&) = delete;
  MeshScope& operator=(const MeshScope&) = delete;
};

/// The mesh of the innermost MeshScope of this rank; undefined if there is
/// none.
DTENSOR_API DeviceMesh get_current_mesh();

namespace detail {

/// `mesh`, or the current one if it is undefined. Throws ValueError from
/// `where` if there is none either, RuntimeError if it is another rank's.
DTENSOR_API DeviceMesh
mesh_or_current(const DeviceMesh& mesh, const char* where);

} // namespace detail

} // namespace dtensor
