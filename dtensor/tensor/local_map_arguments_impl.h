// SPDX-License-Identifier: BSD-3-Clause
// Checks and redistributes the arguments of a local_map.
#pragma once

#include <dtensor/tensor/is_dtensor.h>
#include <dtensor/tensor/local_map.h>

#include <cstddef>

namespace dtensor::detail {

inline constexpr const char* kLocalMap = "local_map";

inline bool is_distributed(const MapLeaf& leaf) {
  return leaf.is_tensor && is_dtensor(leaf.tensor);
}

/// Throws ValueError unless the number of layouts is 0 or the number of
/// arguments.
void check_numbers_of_layouts(const LocalMapLayouts& layouts, size_t arguments);

/// Returns the mesh of all DTensors among the arguments, which must be `asked`
/// if that is defined. Throws RuntimeError if a DTensor is on another mesh.
DeviceMesh common_mesh(const MapLeaves& args, const DeviceMesh& asked);

/// Returns the arguments, with DTensors in their requested layouts. Throws for
/// arguments that cannot or may not be redistributed.
MapLeaves in_layouts(MapLeaves args, const LocalMapLayouts& layouts);

} // namespace dtensor::detail
