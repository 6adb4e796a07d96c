// SPDX-License-Identifier: BSD-3-Clause
// The arguments of a local_map: on one mesh, and in the layouts that are asked
// for.
#pragma once

#include <dtensor/tensor/is_dtensor.h>
#include <dtensor/tensor/local_map.h>

#include <cstddef>

namespace dtensor::detail {

inline constexpr const char* kLocalMap = "local_map";

inline bool is_distributed(const MapLeaf& leaf) {
  return leaf.is_tensor && is_dtensor(leaf.tensor);
}

/// Throws ValueError unless there is one layout for each argument, or none.
void check_numbers_of_layouts(const LocalMapLayouts& layouts, size_t arguments);

/// The mesh of all DTensors among the arguments, which is `asked` if that is
/// defined; throws RuntimeError if one of them is on another one.
DeviceMesh common_mesh(const MapLeaves& args, const DeviceMesh& asked);

/// The arguments, DTensors among them in their layouts; throws for what cannot
/// be brought there, or may not.
MapLeaves in_layouts(MapLeaves args, const LocalMapLayouts& layouts);

} // namespace dtensor::detail
