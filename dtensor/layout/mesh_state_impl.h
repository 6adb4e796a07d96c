// SPDX-License-Identifier: BSD-3-Clause
// The state behind a DeviceMesh handle, and meshes derived from it: slices,
// flattened meshes and concatenations. MeshGroups is the interface to comm/,
// which implements communication; the layout layer does not depend on comm/.
#pragma once

#include <dtensor/layout/mesh.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/util/StringUtil.h>

namespace dtensor::detail {

/// The process groups of a mesh, implemented by comm/group/mesh_groups.cpp.
/// This layer only derives groups for derived meshes.
class DTENSOR_API MeshGroups {
 public:
  virtual ~MeshGroups() = default;
  /// Returns the groups of a slice that keeps the dimensions `dims`.
  virtual std::shared_ptr<MeshGroups> select(
      c10::ArrayRef<int64_t> dims) const = 0;
  /// Returns the groups of a mesh with the dimensions of this mesh, followed by
  /// the dimensions of `others`.
  virtual std::shared_ptr<MeshGroups> joined_with(
      const MeshGroups& others) const = 0;
  /// Creates groups for `pure`, a mesh without groups of shape `shape`, that
  /// joins or splits the dimensions of this mesh. The explicit costs of this
  /// mesh carry over. All ranks of `pure` must call this function. `where`
  /// begins error messages.
  virtual std::shared_ptr<MeshGroups> make_for(
      const DeviceMesh& pure,
      c10::ArrayRef<int64_t> shape,
      const char* where) const = 0;
  /// Address of the World (comm/world.h) of this rank. Never null, and not
  /// reused while these groups live. Meshes of different worlds are never
  /// equal.
  virtual const void* world() const = 0;
  /// Returns the text that identifies an explicit choice of backend or options;
  /// empty for the defaults. Meshes with different choices are not equal.
  virtual const std::string& choice() const = 0;
};

// A result of DeviceMesh::flatten, stored without a handle to the flattened
// mesh. A handle would keep both meshes alive in a cycle.
struct FlattenedMesh {
  std::string name;
  std::vector<int64_t> ranks;
  std::shared_ptr<MeshGroups> groups;
};

/// The values of a mesh, which must be consistent.
struct MeshFields {
  c10::DeviceType device_type;
  std::vector<int64_t> shape;
  std::vector<int64_t> ranks;
  std::vector<std::string> names;
  int64_t rank;
  std::shared_ptr<MeshGroups> groups;
};

struct MeshState : MeshFields {
  explicit MeshState(MeshFields fields) : MeshFields(std::move(fields)) {}

  // Values derived from the fields. `world` is the groups' world; null
  // without groups.
  const void* world = nullptr;
  std::optional<std::vector<int64_t>> coordinate;

  // Caches of flatten() and slice(), not part of the value.
  mutable std::mutex mutex;
  mutable std::vector<FlattenedMesh> flattened;
  mutable std::vector<std::weak_ptr<const MeshState>> sliced_from;
};

using StatePtr = std::shared_ptr<const MeshState>;

/// Returns the state with these values. If an equal state already exists,
/// returns that state, with its groups. Otherwise returns a new state.
StatePtr make_state(MeshFields fields);

/// Converts between a state and a handle.
struct MeshAccess {
  static DeviceMesh mesh(StatePtr state) {
    return DeviceMesh(std::move(state));
  }
  static const MeshState& state(const DeviceMesh& mesh) {
    return *mesh.state_;
  }
};

/// Returns the mesh `pure`, which has no process groups, with `groups`
/// attached.
DTENSOR_API DeviceMesh
with_groups(const DeviceMesh& pure, std::shared_ptr<MeshGroups> groups);

/// Returns the process groups of a mesh; null for a pure mesh.
inline const std::shared_ptr<MeshGroups>& mesh_groups(const DeviceMesh& mesh) {
  return MeshAccess::state(mesh).groups;
}

/// Resolves `dim`, which may count from the end. Throws IndexError if a mesh of
/// `ndim` dimensions has no such dimension.
DTENSOR_API int64_t wrap_mesh_dim(int64_t ndim, int64_t dim, const char* where);

/// Joins names for messages: "dp, tp".
inline std::string join_names(const std::vector<std::string>& names) {
  return c10::Join(", ", names);
}

/// True if both meshes contain a common rank other than this one.
inline bool share_others(const DeviceMesh& a, const DeviceMesh& b) {
  return std::ranges::any_of(a.ranks(), [&](int64_t rank) {
    return rank != a.get_rank() &&
        std::ranges::find(b.ranks(), rank) != b.ranks().end();
  });
}

/// Returns the name of dimension `dim`, which counts from the front; the number
/// if the dimensions are unnamed.
std::string dim_name(const DeviceMesh& mesh, size_t dim);

// Relations between meshes: the meshes that a slice, a flattened mesh or a
// concatenated mesh was derived from.

/// Returns the mesh itself and the living meshes that it was sliced from.
std::vector<StatePtr> family(const StatePtr& state);

/// Records that `slice` was derived from `parent`.
void remember_parents(const MeshState& slice, const StatePtr& parent);

/// Returns `pure`, with new process groups if `origin` has process groups.
/// `where` begins error messages.
DeviceMesh with_groups_of(
    const MeshState& origin,
    const DeviceMesh& pure,
    const char* where);

// Slices that name flattened meshes together with dimensions:
// mesh[{"dp", "cp_tp"}].

/// Returns the coordinate of this rank. On a rank outside the mesh: the
/// coordinate of the first rank.
std::vector<int64_t> point_of(const DeviceMesh& mesh);

/// Returns the flattened mesh called `name` that `state` remembers, if any.
std::optional<FlattenedMesh> find_flattened(
    const MeshState& state,
    std::string_view name);

/// Adds `mesh` to the flattened meshes of `state`, unless `state` has a
/// flattened mesh of this name.
void remember_flattened(const MeshState& state, const FlattenedMesh& mesh);

/// Returns the slice of `mesh` along `names`, some of them names of flattened
/// meshes. The slice communicates on existing groups. Throws IndexError for an
/// unknown name, ValueError for names out of order or names that share a
/// dimension.
DeviceMesh slice_with_flattened(
    const DeviceMesh& mesh,
    const std::vector<std::string>& names);

} // namespace dtensor::detail
