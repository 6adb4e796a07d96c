// SPDX-License-Identifier: BSD-3-Clause
// What is behind a DeviceMesh handle: shared by mesh.cpp, which makes and
// reads it, and mesh_slice.cpp, which derives meshes from it. And the seam to
// comm/, which gives meshes their communication: this layer knows none.
#pragma once

#include <dtensor/layout/mesh.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/StringUtil.h>

namespace dtensor::detail {

/// The communication behind a mesh, which comm/mesh_groups.cpp implements:
/// opaque here, but for what becomes of it in meshes that are derived.
class DTENSOR_API MeshGroups {
 public:
  virtual ~MeshGroups() = default;
  /// Those of a slice that keeps the dimensions `dims`.
  virtual std::shared_ptr<MeshGroups> select(
      c10::ArrayRef<int64_t> dims) const = 0;
  /// Those of a mesh with the dimensions of this one, then those of `others`.
  virtual std::shared_ptr<MeshGroups> joined_with(
      const MeshGroups& others) const = 0;
  /// Those of another mesh of the same world, which `where` makes: it has none
  /// yet. All of its ranks call this.
  virtual std::shared_ptr<MeshGroups> make_for(
      const DeviceMesh& pure,
      const char* where) const = 0;
  /// The World (comm/world.h) of the rank that communicates here, by address:
  /// never null, and not reused while these groups live. Meshes of different
  /// worlds are never equal.
  virtual const void* world() const = 0;
  /// What tells them from those that such a mesh has by itself, where somebody
  /// chose them: meshes that communicate in other ways are not equal.
  virtual const std::string& choice() const = 0;
};

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

/// To and from the handle.
struct MeshAccess {
  static DeviceMesh mesh(StatePtr state) {
    return DeviceMesh(std::move(state));
  }
  static const MeshState& state(const DeviceMesh& mesh) {
    return *mesh.state_;
  }
};

/// The mesh `pure`, which has no communication, with these groups behind it.
DTENSOR_API DeviceMesh
with_groups(const DeviceMesh& pure, std::shared_ptr<MeshGroups> groups);

/// The communication behind a mesh; null for a pure value.
inline const std::shared_ptr<MeshGroups>& mesh_groups(const DeviceMesh& mesh) {
  return MeshAccess::state(mesh).groups;
}

/// The dimension that `dim` means, which may count from the end; throws
/// IndexError where a mesh of `ndim` has none.
DTENSOR_API int64_t wrap_mesh_dim(int64_t ndim, int64_t dim, const char* where);

/// For messages: "dp, tp".
inline std::string join_names(const std::vector<std::string>& names) {
  return c10::Join(", ", names);
}

} // namespace dtensor::detail
