// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/group/mesh_groups_impl.h>

#include <c10/util/StringUtil.h>
#include <dtensor/comm/group/owner_impl.h>
#include <dtensor/comm/world.h>
#include <dtensor/error.h>
#include <dtensor/layout/mesh_slice_impl.h>
#include <dtensor/layout/mesh_state_impl.h>
#include <dtensor/layout/text.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace dtensor {

namespace detail {
namespace {

/// Group along one mesh dimension.
struct DimGroup {
  GroupPtr group;     // null on a rank outside the mesh
  std::string choice; // text of its options; empty: defaults
};

/// Groups of this rank, one per mesh dimension.
class Groups final : public MeshGroups {
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

  std::shared_ptr<MeshGroups> select(
      c10::ArrayRef<int64_t> dims) const override {
    std::vector<DimGroup> selected;
    for (int64_t dim : dims) {
      selected.push_back(groups_.at(static_cast<size_t>(dim)));
    }
    return std::make_shared<Groups>(std::move(selected), world_);
  }

  std::shared_ptr<MeshGroups> joined_with(
      const MeshGroups& others) const override {
    // Groups is the only implementation of MeshGroups.
    const auto& more = static_cast<const Groups&>(others).groups_;
    auto joined = groups_;
    joined.insert(joined.end(), more.begin(), more.end());
    return std::make_shared<Groups>(std::move(joined), world_);
  }

  std::shared_ptr<MeshGroups> make_for(
      const DeviceMesh& pure,
      const char* where) const override {
    check_owner(
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

std::string text_of(const GroupOptions& options) {
  return options.timeout
      ? detail::format_text(
            "{} {} ms", options.backend, options.timeout->count())
      : options.backend;
}

void check_overrides(const DeviceMesh& mesh, const MeshOptions& options) {
  std::vector<std::string> labels;
  for (size_t dim = 0; dim < mesh.shape().size(); ++dim) {
    labels.push_back(dim_name(mesh, dim));
  }
  for (const auto& [name, group] : options.backend_override) {
    DTENSOR_CHECK_VALUE(
        std::find(labels.begin(), labels.end(), name) != labels.end(),
        "[init_device_mesh] backend_override has an unknown mesh dimension "
        "\"{}\": the dimensions are {}. Use one of them.",
        name,
        c10::Join(", ", labels));
  }
}

} // namespace

std::vector<int64_t>
ranks_along(const DeviceMesh& mesh, size_t dim, int64_t mine) {
  const auto shape = mesh.shape();
  const int64_t stride = std::accumulate(
      shape.begin() + static_cast<std::ptrdiff_t>(dim) + 1,
      shape.end(),
      int64_t{1},
      std::multiplies<>());
  const int64_t first = mine - mine / stride % shape[dim] * stride;
  std::vector<int64_t> result;
  for (int64_t i = 0; i < shape[dim]; ++i) {
    result.push_back(mesh.ranks()[static_cast<size_t>(first + i * stride)]);
  }
  return result;
}

std::shared_ptr<MeshGroups> groups_of(
    const DeviceMesh& mesh,
    const MeshOptions& options) {
  check_overrides(mesh, options);
  const auto& ranks = mesh.ranks();
  const auto mine = std::find(ranks.begin(), ranks.end(), get_rank());
  std::vector<DimGroup> groups(mesh.shape().size());
  for (size_t dim = 0; dim < groups.size(); ++dim) {
    const auto label = dim_name(mesh, dim);
    const auto said = options.backend_override.find(label);
    const auto chosen =
        said == options.backend_override.end() ? GroupOptions() : said->second;
    groups[dim].choice = text_of(chosen);
    if (mine != ranks.end()) {
      groups[dim].group = new_group(
          ranks_along(mesh, dim, mine - ranks.begin()), label, chosen);
    }
  }
  return std::make_shared<Groups>(std::move(groups));
}

std::shared_ptr<MeshGroups> groups_of(const std::vector<GroupPtr>& given) {
  std::vector<DimGroup> groups;
  for (const auto& group : given) {
    groups.push_back({group, c10::str(static_cast<const void*>(group.get()))});
  }
  return std::make_shared<Groups>(std::move(groups));
}

} // namespace detail

namespace {

const GroupPtr& group_along(const DeviceMesh& mesh, int64_t dim) {
  // Groups is the only implementation of MeshGroups.
  const auto* groups =
      static_cast<const detail::Groups*>(detail::mesh_groups(mesh).get());
  DTENSOR_CHECK(
      groups != nullptr,
      "[get_group] this mesh has no process groups. Make it with "
      "init_device_mesh.");
  const GroupPtr& group =
      groups->group(detail::wrap_mesh_dim(mesh.ndim(), dim, "get_group"));
  DTENSOR_CHECK(
      group != nullptr,
      "[get_group] rank {} is outside the mesh. Check contains_this_rank() "
      "first.",
      mesh.get_rank());
  return group;
}

} // namespace

Group& get_group(const DeviceMesh& mesh) {
  DTENSOR_CHECK(
      mesh.ndim() == 1,
      "[get_group] a mesh dimension is required, as the mesh has several: {}. "
      "Pass a dimension or its name.",
      mesh);
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
