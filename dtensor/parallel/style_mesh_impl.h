// SPDX-License-Identifier: BSD-3-Clause
// StyleMesh: where the values of a styled module are, and the one dimension of
// it that the style is about.
#pragma once

#include <dtensor/layout/mesh.h>
#include <dtensor/layout/placement.h>
#include <dtensor/layout/whole_layout_impl.h>
#include <dtensor/parallel/style.h>

#include <utility>

namespace dtensor::detail {

struct StyleMesh {
  DeviceMesh mesh;
  int64_t dim = 0;

  // One-dimensional meshes are such.
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

  /// How many ranks a style cuts for.
  int64_t size() const {
    return mesh.size(dim);
  }
  /// `placement` there, and `others` elsewhere.
  Placements with(PlacementsRef others, const Placement& placement) const {
    Placements all(others.begin(), others.end());
    all[static_cast<size_t>(dim)] = placement;
    return all;
  }
  /// Whole elsewhere.
  Placements alone(const Placement& placement) const {
    return with(whole_placements(mesh), placement);
  }

  friend bool operator==(const StyleMesh&, const StyleMesh&) = default;
};

} // namespace dtensor::detail
