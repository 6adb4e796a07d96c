// SPDX-License-Identifier: BSD-3-Clause
// StyleMesh: the mesh of a styled module's tensors, and the mesh dimension that
// the style shards along.
#pragma once

#include <dtensor/layout/mesh.h>
#include <dtensor/layout/placement.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/parallel/style.h>

#include <utility>

namespace dtensor::detail {

struct StyleMesh {
  DeviceMesh mesh;
  int64_t dim = 0;

  // Implicit: a 1-D mesh is a StyleMesh.
  StyleMesh(DeviceMesh all, int64_t styled_dim = 0)
      : mesh(std::move(all)),
        dim(styled_dim) {}
  static StyleMesh of(const StyleTarget& target) {
    return target.root_mesh.defined()
        ? StyleMesh(
              target.root_mesh,
              target.root_mesh.dim_of(target.mesh.mesh_dim_names()[0]))
        : StyleMesh(target.mesh);
  }

  /// Number of ranks that a style shards over.
  int64_t size() const {
    return mesh.size(dim);
  }
  /// Returns `placement` on the style's dimension, `others` elsewhere.
  Placements with(PlacementsRef others, const Placement& placement) const {
    Placements all(others.begin(), others.end());
    all[static_cast<size_t>(dim)] = placement;
    return all;
  }
  /// Returns `placement` on the style's dimension, Replicate() elsewhere.
  Placements alone(const Placement& placement) const {
    return with(replicated_placements(mesh), placement);
  }

  friend bool operator==(const StyleMesh&, const StyleMesh&) = default;
};

} // namespace dtensor::detail
