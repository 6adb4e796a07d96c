// SPDX-License-Identifier: BSD-3-Clause
// MeshScope: sets the mesh of calls that pass none.
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

/// Scope in which `mesh` is the current mesh of this rank: functions use it if
/// the caller passes no mesh, or an undefined one. Scopes nest. Throws
/// ValueError for an undefined mesh, RuntimeError for another rank's mesh.
class DTENSOR_API MeshScope {
 public:
  explicit MeshScope(const DeviceMesh& mesh);
  ~MeshScope();
  MeshScope(const MeshScope&) = delete;
  MeshScope& operator=(const MeshScope&) = delete;
};

/// Returns the mesh of this rank's innermost MeshScope; an undefined mesh
/// outside of scopes.
DTENSOR_API DeviceMesh get_current_mesh();

namespace detail {

/// Returns `mesh`, or the current mesh if it is undefined. Throws ValueError,
/// prefixed with `where`, if both are undefined, and RuntimeError for another
/// rank's mesh.
DTENSOR_API DeviceMesh
mesh_or_current(const DeviceMesh& mesh, const char* where);

} // namespace detail

} // namespace dtensor
