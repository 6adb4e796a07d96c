// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/mesh_scope.h>

#include <dtensor/comm/group/owner_impl.h>
#include <dtensor/comm/rank/rank_local_impl.h>
#include <dtensor/error.h>

#include <vector>

namespace dtensor {
namespace {

detail::RankLocal<std::vector<DeviceMesh>> current_meshes;

} // namespace

MeshScope::MeshScope(const DeviceMesh& mesh) {
  DTENSOR_CHECK_VALUE(
      mesh.defined(),
      "[MeshScope] the mesh is undefined. Use init_device_mesh.");
  detail::check_owned_by_this_rank("MeshScope", mesh);
  current_meshes.get().push_back(mesh);
}

MeshScope::~MeshScope() {
  auto& meshes = current_meshes.get();
  if (!meshes.empty()) { // empty if the rank has ended
    meshes.pop_back();
  }
}

DeviceMesh get_current_mesh() {
  const auto& meshes = current_meshes.get();
  return meshes.empty() ? DeviceMesh() : meshes.back();
}

DeviceMesh detail::mesh_or_current(const DeviceMesh& mesh, const char* where) {
  auto found = mesh.defined() ? mesh : get_current_mesh();
  DTENSOR_CHECK_VALUE(
      found.defined(),
      "[{}] no mesh was passed and no mesh is current. Pass a mesh from "
      "init_device_mesh, or set the current one with MeshScope.",
      where);
  if (!is_of_this_thread(found)) {
    check_owned_by_this_rank(where, found);
  }
  return found;
}

} // namespace dtensor
