// SPDX-License-Identifier: BSD-3-Clause
// DeviceMesh: ranks arranged in n dimensions, seen from one of them.
//
// A mesh is a cheap handle to an immutable value. Slices of a mesh are meshes:
//
//   auto mesh = init_device_mesh(torch::kCPU, {2, 4}, {"dp", "tp"});
//   mesh["tp"].size();                  // 4: the ranks that share my "dp"
//   mesh.get_local_rank("dp");          // my row
//
// A mesh made here is a pure value. Those that can communicate come from
// comm/init_device_mesh.h.
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
  /// No mesh: defined() is false, nothing else may be called.
  DeviceMesh() = default;

  /// A mesh of `shape` over the global `ranks` in row-major order, as rank
  /// `rank` sees it (a rank outside the mesh is allowed). A pure value for
  /// planning: nothing can be communicated on it.
  /// Throws ValueError: shape, ranks and names that do not fit together, a
  /// name twice, an empty name, a rank twice.
  DeviceMesh(
      c10::DeviceType device_type,
      std::vector<int64_t> shape,
      std::vector<int64_t> ranks,
      std::vector<std::string> mesh_dim_names = {},
      int64_t rank = 0);

  /// Whether it is a mesh.
  bool defined() const {
    return state_ != nullptr;
  }

  /// The type of device that its tensors are on, how many dimensions it has,
  /// and the number of ranks along each.
  c10::DeviceType device_type() const;
  int64_t ndim() const;
  c10::ArrayRef<int64_t> shape() const;
  /// Number of ranks in the whole mesh.
  int64_t size() const;
  /// Number of ranks along one dimension; negative dims count from the end.
  int64_t size(int64_t dim) const;
  int64_t size(std::string_view name) const;
  /// Global ranks, row-major.
  const std::vector<int64_t>& ranks() const;
  /// Empty when the dimensions have no names.
  const std::vector<std::string>& mesh_dim_names() const;
  /// The dimension called `name`. Throws IndexError naming those that exist.
  int64_t dim_of(std::string_view name) const;
  /// For messages: the name of `dim`, quoted, or its number.
  std::string dim_label(int64_t dim) const;

  /// This process's (or thread's) global rank.
  int64_t get_rank() const;
  /// My position along `dim`; `dim` may be left out on a 1-D mesh only.
  /// Throws RuntimeError on a rank outside the mesh.
  int64_t get_local_rank() const;
  int64_t get_local_rank(int64_t dim) const;
  int64_t get_local_rank(std::string_view name) const;
  /// My position along every dimension; nothing on a rank outside the mesh.
  const std::optional<std::vector<int64_t>>& get_coordinate() const;
  /// False on a rank outside the mesh: its local tensors are empty and its
  /// collectives do nothing.
  bool contains_this_rank() const {
    return get_coordinate().has_value();
  }
  /// The position along every dimension of the `index`-th rank of ranks().
  std::vector<int64_t> coordinate_of(int64_t index) const;

  /// The slice that keeps the named dimensions (in mesh order), through this
  /// rank. Throws IndexError for unknown names, ValueError for names out of
  /// order or twice. A name given to flatten() is known too, and stands where
  /// the dimensions that it joins stand: mesh[{"dp", "cp_tp"}]. Of a rank
  /// outside the mesh, the slice through the first rank.
  DeviceMesh operator[](std::string_view name) const;
  DeviceMesh operator[](std::initializer_list<std::string_view> names) const;
  DeviceMesh slice(const std::vector<std::string>& names) const;

  /// All dimensions joined into one, row-major, called `name` (default: the
  /// names joined by "_"). The result is remembered: this mesh, and those that
  /// it was sliced from, find it by that name. Throws ValueError for a name
  /// that is taken. Python: DeviceMesh._flatten.
  DeviceMesh flatten(std::string name = "") const;

  /// Dimension `dim` taken apart into dimensions of these sizes, row-major,
  /// with these names (none if the mesh has none). The others stay. All ranks
  /// of the mesh call it. Throws ValueError for sizes whose product is another,
  /// or names unlike them in number. Python: DeviceMesh._unflatten.
  DeviceMesh unflatten(
      int64_t dim,
      const std::vector<int64_t>& sizes,
      const std::vector<std::string>& mesh_dim_names = {}) const;
  DeviceMesh unflatten(
      std::string_view name,
      const std::vector<int64_t>& sizes,
      const std::vector<std::string>& mesh_dim_names) const;

  /// The dimensions of several meshes side by side, which were sliced from one
  /// mesh that is still alive, or made of its slices by flatten() and
  /// unflatten(). All of their ranks call it. Throws ValueError for meshes that
  /// have no common origin, or share a dimension of it.
  /// Python: DeviceMesh._concatenate.
  static DeviceMesh concatenate(const std::vector<DeviceMesh>& meshes);

  /// Same device type, ranks, shape, names, point of view and world, and the
  /// same way to communicate where one was chosen.
  friend DTENSOR_API bool operator==(const DeviceMesh& a, const DeviceMesh& b);
  /// Equal meshes of one rank share one state, so this identifies a mesh.
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
