// SPDX-License-Identifier: BSD-3-Clause
#include <c10/util/StringUtil.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/owner_impl.h>
#include <dtensor/comm/world.h>
#include <dtensor/error.h>
#include <dtensor/layout/mesh_dimension_impl.h>
#include <dtensor/layout/mesh_state_impl.h>
#include <dtensor/layout/text.h>

#include <algorithm>
#include <numeric>

namespace dtensor {
namespace {

/// The group along one mesh dimension.
struct DimGroup {
  GroupPtr group;     // null on a rank outside the mesh
  std::string choice; // what was said of it; empty: nothing
};

std::shared_ptr<detail::MeshGroups> groups_of(
    const DeviceMesh& mesh,
    const MeshOptions& options = {});

/// The groups of this rank, one per mesh dimension.
class Groups final : public detail::MeshGroups {
 public:
  explicit Groups(
      std::vector<DimGroup> groups,
      std::shared_ptr<World> world = this_world())
      : groups_(std::move(groups)),
        world_(std::move(world)) {
    const bool is_chosen =
        std::any_of(groups_.begin(), groups_.end(), [](const auto& g) {
          return !g.choice.empty();
        });
    for (const auto& [group, choice] : groups_) {
      choice_ += is_chosen ? choice + ";" : "";
    }
  }

  std::shared_ptr<detail::MeshGroups> select(
      c10::ArrayRef<int64_t> dims) const override {
    std::vector<DimGroup> selected;
    for (int64_t dim : dims) {
      selected.push_back(groups_.at(static_cast<size_t>(dim)));
    }
    return std::make_shared<Groups>(std::move(selected), world_);
  }

  std::shared_ptr<detail::MeshGroups> make_for(
      const DeviceMesh& pure,
      const char* where) const override {
    detail::check_owner(
        where, [] { return "the mesh"; }, world_.get());
    return groups_of(pure);
  }

  const void* world() const override {
    return world_.get();
  }
  const std::string& choice() const override {
    return choice_;
  }

  const GroupPtr& group(int64_t dim) const {
    return groups_.at(static_cast<size_t>(dim)).group;
  }

 private:
  std::vector<DimGroup> groups_;
  std::shared_ptr<World> world_;
  std::string choice_;
};

// The ranks along `dim` through the position `mine` of a row-major mesh.
std::vector<int64_t> ranks_along(
    const std::vector<int64_t>& shape,
    const std::vector<int64_t>& ranks,
    size_t dim,
    int64_t mine) {
  const int64_t stride = std::accumulate(
      shape.begin() + static_cast<std::ptrdiff_t>(dim) + 1,
      shape.end(),
      int64_t{1},
      std::multiplies<>());
  const int64_t first = mine - mine / stride % shape[dim] * stride;
  std::vector<int64_t> result;
  for (int64_t i = 0; i < shape[dim]; ++i) {
    result.push_back(ranks[static_cast<size_t>(first + i * stride)]);
  }
  return result;
}

std::string text_of(const GroupOptions& options) {
  return options.timeout
      ? c10::str(options.backend, " ", options.timeout->count(), " ms")
      : options.backend;
}

void check_overrides(const DeviceMesh& mesh, const MeshOptions& options) {
  std::vector<std::string> labels;
  for (size_t dim = 0; dim < mesh.shape().size(); ++dim) {
    labels.push_back(detail::dim_name(mesh, dim));
  }
  for (const auto& [name, group] : options.backend_override) {
    DTENSOR_CHECK_VALUE(
        std::find(labels.begin(), labels.end(), name) != labels.end(),
        "init_device_mesh",
        "backend_override names \"",
        name,
        "\", and the dimensions are ",
        c10::Join(", ", labels),
        ". Use one of them.");
  }
}

std::shared_ptr<detail::MeshGroups> groups_of(
    const DeviceMesh& mesh,
    const MeshOptions& options) {
  check_overrides(mesh, options);
  const std::vector<int64_t> shape = mesh.shape().vec();
  const auto& ranks = mesh.ranks();
  const auto mine = std::find(ranks.begin(), ranks.end(), get_rank());
  std::vector<DimGroup> groups(shape.size());
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    const auto label = detail::dim_name(mesh, dim);
    const auto said = options.backend_override.find(label);
    const auto chosen =
        said == options.backend_override.end() ? GroupOptions() : said->second;
    groups[dim].choice = text_of(chosen);
    if (mine != ranks.end()) {
      groups[dim].group = new_group(
          ranks_along(shape, ranks, dim, mine - ranks.begin()), label, chosen);
    }
  }
  return std::make_shared<Groups>(std::move(groups));
}

// Of this rank: the members along `dim`, in order.
void check_group(
    const Group* group,
    const std::vector<int64_t>& expected,
    const std::string& dim) {
  constexpr const char* kWhere = "from_group";
  DTENSOR_CHECK_VALUE(
      group != nullptr,
      kWhere,
      "there is no group for mesh dim ",
      dim,
      ". Give one made by new_group().");
  DTENSOR_CHECK_VALUE(
      group->ranks() == expected,
      kWhere,
      "the group for mesh dim ",
      dim,
      " has the ranks ",
      SizesRef(group->ranks()),
      ", and the mesh has ",
      SizesRef(expected),
      " there. Give the group of these, in this order.");
}

void check_world(
    std::string_view where,
    const std::vector<int64_t>& shape,
    const std::vector<int64_t>& ranks) {
  const int64_t world_size = get_world_size();
  for (int64_t rank : ranks) {
    DTENSOR_CHECK_VALUE(
        rank >= 0 && rank < world_size,
        where,
        "a mesh of shape (",
        c10::Join(", ", shape),
        ") needs rank ",
        rank,
        ", but the world has ",
        world_size,
        world_size == 1 ? " rank" : " ranks",
        ". Start more ranks or make the mesh smaller.");
  }
}

// It checks what the groups are made from.
DeviceMesh pure_mesh(
    const char* where,
    c10::DeviceType device_type,
    std::vector<int64_t> mesh_shape,
    std::vector<int64_t> ranks,
    std::vector<std::string> mesh_dim_names) {
  check_world(where, mesh_shape, ranks);
  return {
      device_type,
      std::move(mesh_shape),
      std::move(ranks),
      std::move(mesh_dim_names),
      get_rank()};
}

// That of this rank, for which there is a group along each dimension.
int64_t place_among(
    const std::vector<GroupPtr>& groups,
    const DeviceMesh& pure) {
  DTENSOR_CHECK_VALUE(
      static_cast<int64_t>(groups.size()) == pure.ndim(),
      "from_group",
      groups.size(),
      " groups for a mesh of ",
      pure.ndim(),
      " dimensions. Give one for each.");
  const auto& all = pure.ranks();
  const auto mine = std::find(all.begin(), all.end(), get_rank());
  DTENSOR_CHECK_VALUE(
      mine != all.end(),
      "from_group",
      "rank ",
      get_rank(),
      " is outside the mesh of ranks ",
      SizesRef(all),
      ". Call it on ranks of the mesh only.");
  return mine - all.begin();
}

} // namespace

DeviceMesh init_device_mesh(
    c10::DeviceType device_type,
    std::vector<int64_t> mesh_shape,
    std::vector<std::string> mesh_dim_names,
    const MeshOptions& options) {
  int64_t size = mesh_shape.empty() ? 0 : 1;
  for (int64_t n : mesh_shape) {
    DTENSOR_CHECK_VALUE(
        n > 0,
        "init_device_mesh",
        "every dimension needs a rank: (",
        c10::Join(", ", mesh_shape),
        "). Use positive sizes.");
    size *= n;
  }
  DTENSOR_CHECK_VALUE(
      size > 0,
      "init_device_mesh",
      "the shape is empty. Give the mesh at least one dimension.");
  DTENSOR_CHECK_VALUE(
      size <= get_world_size(),
      "init_device_mesh",
      "a mesh of shape (",
      c10::Join(", ", mesh_shape),
      ") needs ",
      size,
      " ranks, but the world has ",
      get_world_size(),
      ". Start more ranks or make the mesh smaller.");
  std::vector<int64_t> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return make_device_mesh(
      device_type,
      std::move(mesh_shape),
      std::move(ranks),
      std::move(mesh_dim_names),
      options);
}

DeviceMesh make_device_mesh(
    c10::DeviceType device_type,
    std::vector<int64_t> mesh_shape,
    std::vector<int64_t> ranks,
    std::vector<std::string> mesh_dim_names,
    const MeshOptions& options) {
  const auto pure = pure_mesh(
      "make_device_mesh",
      device_type,
      std::move(mesh_shape),
      std::move(ranks),
      std::move(mesh_dim_names));
  return detail::with_groups(pure, groups_of(pure, options));
}

DeviceMesh make_device_mesh(
    c10::DeviceType device_type,
    const at::Tensor& ranks,
    std::vector<std::string> mesh_dim_names,
    const MeshOptions& options) {
  DTENSOR_CHECK_VALUE(
      ranks.defined() && at::isIntegralType(ranks.scalar_type(), false) &&
          ranks.dim() > 0,
      "make_device_mesh",
      "the ranks are ",
      ranks.defined() ? ranks.toString() : "undefined",
      " of ",
      ranks.defined() ? ranks.dim() : 0,
      " dimensions. Give an integer tensor of the mesh's shape.");
  const auto flat = ranks.to(at::kCPU, at::kLong).contiguous();
  const auto* const first = flat.const_data_ptr<int64_t>();
  return make_device_mesh(
      device_type,
      ranks.sizes().vec(),
      std::vector<int64_t>(first, first + flat.numel()),
      std::move(mesh_dim_names),
      options);
}

DeviceMesh from_group(
    const GroupPtr& group,
    c10::DeviceType device_type,
    std::vector<std::string> mesh_dim_names) {
  DTENSOR_CHECK_VALUE(
      group != nullptr,
      "from_group",
      "there is no group. Give one made by new_group().");
  return from_group(
      std::vector<GroupPtr>{group},
      device_type,
      {group->size()},
      group->ranks(),
      std::move(mesh_dim_names));
}

DeviceMesh from_group(
    const std::vector<GroupPtr>& groups,
    c10::DeviceType device_type,
    std::vector<int64_t> mesh_shape,
    std::vector<int64_t> ranks,
    std::vector<std::string> mesh_dim_names) {
  const auto pure = pure_mesh(
      "from_group",
      device_type,
      std::move(mesh_shape),
      std::move(ranks),
      std::move(mesh_dim_names));
  const auto mine = place_among(groups, pure);
  std::vector<DimGroup> taken;
  for (size_t dim = 0; dim < groups.size(); ++dim) {
    const auto* const group = groups[dim].get();
    check_group(
        group,
        ranks_along(pure.shape().vec(), pure.ranks(), dim, mine),
        pure.dim_label(static_cast<int64_t>(dim)));
    taken.push_back({groups[dim], c10::str(static_cast<const void*>(group))});
  }
  return detail::with_groups(pure, std::make_shared<Groups>(std::move(taken)));
}

namespace {

const GroupPtr& group_along(const DeviceMesh& mesh, int64_t dim) {
  // Nobody else gives meshes groups.
  const auto* groups =
      static_cast<const Groups*>(detail::mesh_groups(mesh).get());
  DTENSOR_CHECK(
      groups != nullptr,
      "get_group",
      "this mesh is a pure value without communication. Make it with "
      "init_device_mesh.");
  const int64_t ndim = mesh.ndim();
  DTENSOR_CHECK_INDEX(
      dim >= -ndim && dim < ndim,
      "get_group",
      "no dimension ",
      dim,
      " in a mesh of ",
      ndim,
      ". Use one from ",
      -ndim,
      " to ",
      ndim - 1,
      ".");
  const GroupPtr& group = groups->group(dim < 0 ? dim + ndim : dim);
  DTENSOR_CHECK(
      group != nullptr,
      "get_group",
      "rank ",
      mesh.get_rank(),
      " is outside the mesh. Check contains_this_rank() first.");
  return group;
}

} // namespace

Group& get_group(const DeviceMesh& mesh) {
  DTENSOR_CHECK(
      mesh.ndim() == 1,
      "get_group",
      "which dimension? The mesh is ",
      mesh,
      ". Pass a dimension or its name.");
  return get_group(mesh, 0);
}

Group& get_group(const DeviceMesh& mesh, int64_t dim) {
  return *group_along(mesh, dim);
}

std::vector<GroupPtr> get_all_groups(const DeviceMesh& mesh) {
  std::vector<GroupPtr> groups;
  for (int64_t dim = 0; dim < mesh.ndim(); ++dim) {
    groups.push_back(group_along(mesh, dim));
  }
  return groups;
}

Group& get_group(const DeviceMesh& mesh, std::string_view name) {
  return get_group(mesh, mesh.dim_of(name));
}

} // namespace dtensor
