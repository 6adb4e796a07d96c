// SPDX-License-Identifier: BSD-3-Clause
// DeviceMesh: ranks arranged in n dimensions, as seen from one rank.
//
// A mesh is a cheap handle to an immutable value. Slices of a mesh are meshes:
//
//   auto mesh = init_device_mesh(torch::kCPU, {2, 4}, {"dp", "tp"});
//   mesh["tp"].size();                  // 4: the ranks in this rank's row
//   mesh.get_local_rank("dp");          // the number of this rank's row
//
// A mesh made by the constructor is a pure mesh: a value for planning that
// cannot communicate. init_device_mesh() (comm/init_device_mesh.h) makes meshes
// that can.
//
// Python: torch.distributed.device_mesh.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/util/ArrayRef.h>
#include <dtensor/api.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtensor {

namespace detail {
struct MeshAccess;
struct MeshState;
} // namespace detail

class DTENSOR_API DeviceMesh {
 public:
  /// An undefined mesh: defined() is false, and no other member may be called.
  DeviceMesh() = default;

  /// A mesh of `shape` over the global `ranks` in row-major order, as seen from
  /// rank `rank` (a rank outside the mesh is allowed). The mesh is pure: it
  /// cannot communicate. Throws ValueError if shape, ranks and names do not fit
  /// together, for a duplicate or empty name, and for a duplicate rank.
  DeviceMesh(
      c10::DeviceType device_type,
      std::vector<int64_t> shape,
      std::vector<int64_t> ranks,
      std::vector<std::string> mesh_dim_names = {},
      int64_t rank = 0);

  /// True if this handle refers to a mesh.
  bool defined() const {
    return state_ != nullptr;
  }

  /// Return the device type of the mesh's tensors, the number of mesh
  /// dimensions, and the number of ranks along each.
  c10::DeviceType device_type() const;
  int64_t ndim() const;
  c10::ArrayRef<int64_t> shape() const;
  /// Returns the number of ranks in the mesh.
  int64_t size() const;
  /// Returns the number of ranks along one dimension; negative dims count from
  /// the end.
  int64_t size(int64_t dim) const;
  int64_t size(std::string_view name) const;
  /// Returns the global ranks, row-major.
  const std::vector<int64_t>& ranks() const;
  /// Returns the names of the dimensions; empty if they have none.
  const std::vector<std::string>& mesh_dim_names() const;
  /// Returns the dimension called `name`. Throws IndexError listing the names.
  int64_t dim_of(std::string_view name) const;
  /// Returns the quoted name of `dim`, or its number if unnamed. For messages.
  std::string dim_label(int64_t dim) const;

  /// Returns the global rank of this process (or thread).
  int64_t get_rank() const;
  /// Returns this rank's position along `dim`, which may be omitted on a 1-D
  /// mesh only. Throws RuntimeError on a rank outside the mesh.
  int64_t get_local_rank() const;
  int64_t get_local_rank(int64_t dim) const;
  int64_t get_local_rank(std::string_view name) const;
  /// Returns this rank's position along every dimension; nullopt on a rank
  /// outside the mesh.
  const std::optional<std::vector<int64_t>>& get_coordinate() const;
  /// False on a rank outside the mesh: its local tensors are empty and its
  /// collectives do nothing.
  bool contains_this_rank() const {
    return get_coordinate().has_value();
  }
  /// Returns the coordinate of rank ranks()[index]: its position along each
  /// dimension.
  std::vector<int64_t> coordinate_of(int64_t index) const;

  /// Returns the slice that keeps the named dimensions (in mesh order) and
  /// contains this rank. On a rank outside the mesh, the slice contains the
  /// first rank. A name given to flatten() is also valid, at the position of
  /// the dimensions that it joins: mesh[{"dp", "cp_tp"}]. Throws IndexError for
  /// unknown names, ValueError for names out of order or duplicate names.
  DeviceMesh operator[](std::string_view name) const;
  DeviceMesh operator[](std::initializer_list<std::string_view> names) const;
  DeviceMesh slice(const std::vector<std::string>& names) const;
  /// Returns the slice along dimension `dim` that contains this rank. The
  /// dimensions need no names. Negative dims count from the end. Throws
  /// IndexError if the mesh has no such dimension.
  DeviceMesh operator[](int64_t dim) const;

  /// Joins all dimensions into one, row-major, called `name` (default: the
  /// names joined by "_"). The result is cached: operator[] of this mesh, and
  /// of the meshes that it was sliced from, finds the result by that name.
  /// Throws ValueError for a name in use. Python: DeviceMesh._flatten.
  DeviceMesh flatten(std::string name = "") const;

  /// Splits dimension `dim` into dimensions of these sizes, row-major, with
  /// these names (none if the mesh has none). Other dimensions stay. All ranks
  /// of the mesh must call it. Throws ValueError if the product of the sizes is
  /// not the size of `dim`, or if sizes and names differ in number.
  /// Python: DeviceMesh._unflatten.
  DeviceMesh unflatten(
      int64_t dim,
      const std::vector<int64_t>& sizes,
      const std::vector<std::string>& mesh_dim_names = {}) const;
  DeviceMesh unflatten(
      std::string_view name,
      const std::vector<int64_t>& sizes,
      const std::vector<std::string>& mesh_dim_names) const;

  /// Concatenates the dimensions of several meshes. The meshes must be slices
  /// of one mesh that still exists, or results of flatten() and unflatten() on
  /// such slices. All ranks of the meshes must call it. Throws ValueError if
  /// the meshes do not come from one mesh, or if two of them contain the same
  /// dimension of that mesh.
  /// Python: DeviceMesh._concatenate.
  static DeviceMesh concatenate(const std::vector<DeviceMesh>& meshes);

  /// True if device type, ranks, shape, names, this rank, world and explicit
  /// backend options (MeshOptions) are equal.
  friend DTENSOR_API bool operator==(const DeviceMesh& a, const DeviceMesh& b);
  /// Returns an address that identifies the mesh: equal meshes of one rank have
  /// the same address.
  const void* identity() const {
    return state_.get();
  }

 private:
  friend struct detail::MeshAccess;
  explicit DeviceMesh(std::shared_ptr<const detail::MeshState> state)
      : state_(std::move(state)) {}

  std::shared_ptr<const detail::MeshState> state_;
};

} // namespace dtensor
