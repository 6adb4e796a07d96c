// SPDX-License-Identifier: BSD-3-Clause
// What is behind a DeviceMesh handle: shared by mesh.cpp, which makes and
// reads it, and mesh_slice.cpp, which derives meshes from it.
#pragma once

#include <dtensor/layout/mesh.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <c10/util/StringUtil.h>

namespace dtensor::detail {

// What DeviceMesh::flatten made, without a handle to it: a mesh that kept its
// flattened meshes alive would be kept alive by them.
struct FlattenedMesh {
  std::string name;
  std::vector<int64_t> ranks;
  std::shared_ptr<MeshGroups> groups;
};

struct MeshState {
  c10::DeviceType device_type;
  std::vector<int64_t> shape;
  std::vector<int64_t> ranks;
  std::vector<std::string> names;
  int64_t rank;
  std::shared_ptr<MeshGroups> groups;
  // Follows from the above. `world` is that of the groups; null without them.
  const void* world = nullptr;
  std::optional<std::vector<int64_t>> coordinate;

  // What flatten() and slice() remember; none of it is part of the value.
  mutable std::mutex mutex;
  mutable std::vector<FlattenedMesh> flattened;
  mutable std::vector<std::weak_ptr<const MeshState>> sliced_from;
};

using StatePtr = std::shared_ptr<const MeshState>;

/// The state of these parts, which fit together: the one that lives already,
/// with its groups, or a new one.
StatePtr make_state(
    c10::DeviceType device_type,
    std::vector<int64_t> shape,
    std::vector<int64_t> ranks,
    std::vector<std::string> names,
    int64_t rank,
    std::shared_ptr<MeshGroups> groups);

/// For messages: "dp, tp".
inline std::string join_names(const std::vector<std::string>& names) {
  return c10::Join(", ", names);
}

} // namespace dtensor::detail
