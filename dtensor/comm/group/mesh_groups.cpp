// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/group/mesh_groups_impl.h>

#include <c10/util/StringUtil.h>
#include <dtensor/comm/group/owner_impl.h>
#include <dtensor/comm/world.h>
#include <dtensor/error.h>
#include <dtensor/layout/mesh_state_impl.h>
#include <dtensor/layout/text.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace dtensor {

namespace detail {
namespace {

/// Group along one mesh dimension.
struct DimGroup {
  GroupPtr group;     // null on a rank outside the mesh
  std::string choice; // text of its options and cost; empty: defaults
  LinkCost cost;
  bool is_priced = false; // MeshOptions gave the cost
  // Options for groups over this dimension and others; nullopt if the group is
  // not from this world's new_group().
  std::optional<GroupOptions> options;
};

// Returns the ranks of `mesh` whose coordinates differ from this rank's only in
// `dims`, in row-major order.
std::vector<int64_t> ranks_over(
    const DeviceMesh& mesh,
    c10::ArrayRef<int64_t> dims) {
  auto here = *mesh.get_coordinate();
  std::vector<int64_t> ranks;
  for (int64_t i = 0; i < mesh.size(); ++i) {
    const auto there = mesh.coordinate_of(i);
    for (const int64_t dim : dims) {
      const auto at = static_cast<size_t>(dim);
      here[at] = there[at];
    }
    if (here == there) {
      ranks.push_back(mesh.ranks()[static_cast<size_t>(i)]);
    }
  }
  return ranks;
}

// Returns the number of ranks of a row-major mesh that differ only in
// dimensions `first` and later.
int64_t ranks_within(c10::ArrayRef<int64_t> shape, size_t first) {
  return numel(shape.slice(first));
}

/// Groups of this rank, one per mesh dimension, and groups over several mesh
/// dimensions that were needed so far.
class Groups final : public MeshGroups {
 public:
  explicit Groups(
      std::vector<DimGroup> groups,
      std::shared_ptr<World> world = this_world())
      : groups_(std::move(groups)),
        world_(std::move(world)) {
    const bool is_chosen = std::ranges::any_of(
        groups_, [](const auto& g) { return !g.choice.empty(); });
    for (const auto& g : groups_) {
      choice_ += is_chosen ? g.choice + ";" : "";
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
      c10::ArrayRef<int64_t> shape,
      const char* where) const override {
    check_owner(
        where, [] { return "the mesh"; }, world_.get());
    MeshOptions options;
    for (size_t dim = 0; dim < pure.shape().size(); ++dim) {
      if (const auto cost = given_cost(shape, pure.shape(), dim)) {
        options.cost[dim_name(pure, dim)] = *cost;
      }
    }
    return groups_of(pure, options);
  }

  const void* world() const override {
    return world_.get();
  }
  const std::string& choice() const override {
    return choice_;
  }

  const DimGroup& along(int64_t dim) const {
    return groups_.at(static_cast<size_t>(dim));
  }

  /// Returns the group over several dimensions of `mesh`, the mesh of these
  /// groups, and makes it on first use.
  Group& joint(const DeviceMesh& mesh, c10::ArrayRef<int64_t> dims) const {
    const std::lock_guard lock(mutex_);
    auto& group = joint_[dims.vec()];
    if (group == nullptr) {
      std::vector<std::string> names;
      for (const int64_t dim : dims) {
        names.push_back(dim_name(mesh, static_cast<size_t>(dim)));
      }
      const auto& options = along(dims.front()).options;
      group = new_group(
          ranks_over(mesh, dims), c10::Join("_", names), options.value());
    }
    return *group;
  }

 private:
  // Returns the cost of dimension `dim` of a mesh of `new_shape` over the ranks
  // of this mesh, of `shape`: the cost of the slowest dimension that it shares
  // ranks with. Empty if none of these dimensions has an explicit cost.
  std::optional<LinkCost> given_cost(
      c10::ArrayRef<int64_t> shape,
      c10::ArrayRef<int64_t> new_shape,
      size_t dim) const {
    const int64_t stride = ranks_within(new_shape, dim + 1);
    std::optional<LinkCost> slowest;
    bool is_priced = false;
    for (size_t i = 0; i < shape.size(); ++i) {
      const bool is_shared = stride < ranks_within(shape, i) &&
          ranks_within(new_shape, dim) > ranks_within(shape, i + 1);
      if (is_shared) {
        const auto& along = groups_[i];
        slowest = slowest ? slower_of(*slowest, along.cost) : along.cost;
        is_priced |= along.is_priced;
      }
    }
    return is_priced ? slowest : std::nullopt;
  }

  std::vector<DimGroup> groups_;
  std::shared_ptr<World> world_;
  std::string choice_;
  mutable std::mutex mutex_;
  mutable std::map<std::vector<int64_t>, GroupPtr> joint_;
};

std::string text_of(const GroupOptions& options) {
  return options.timeout
      ? detail::format_text(
            "{} {} ms", options.backend, options.timeout->count())
      : options.backend;
}

std::string text_of(const LinkCost& cost) {
  return detail::format_text(
      "{} us, {} GB/s", cost.latency_us, cost.gigabytes_per_s);
}

// Throws unless every key of `options` is a mesh dimension. `field` is the name
// of the field of MeshOptions.
template <typename T>
void check_keys(
    const DeviceMesh& mesh,
    const std::map<std::string, T>& options,
    const char* field) {
  std::vector<std::string> labels;
  for (size_t dim = 0; dim < mesh.shape().size(); ++dim) {
    labels.push_back(dim_name(mesh, dim));
  }
  for (const auto& [name, value] : options) {
    DTENSOR_CHECK_VALUE(
        std::ranges::find(labels, name) != labels.end(),
        "[init_device_mesh] {} has an unknown mesh dimension \"{}\": the "
        "dimensions are {}. Use one of them.",
        field,
        name,
        c10::Join(", ", labels));
  }
}

void check_options(const DeviceMesh& mesh, const MeshOptions& options) {
  check_keys(mesh, options.backend_override, "backend_override");
  check_keys(mesh, options.cost, "cost");
  for (const auto& [name, cost] : options.cost) {
    DTENSOR_CHECK_VALUE(
        cost.latency_us > 0 && cost.gigabytes_per_s > 0,
        "[init_device_mesh] the cost of mesh dim \"{}\" is not positive: {}. "
        "Pass a latency in microseconds and a bandwidth in GB/s.",
        name,
        text_of(cost));
  }
}

// Returns the cost along `dim`: the cost of the slowest group along `dim`, so
// that all ranks of the mesh get the same cost.
LinkCost
cost_along(const DeviceMesh& mesh, size_t dim, const GroupOptions& options) {
  LinkCost slowest{0, std::numeric_limits<double>::infinity()};
  for (int64_t i = 0; i < mesh.size(); ++i) {
    if (mesh.coordinate_of(i)[dim] == 0) {
      slowest = slower_of(
          slowest,
          current_world().link_cost(
              ranks_along(mesh, dim, i), mesh.device_type(), options.backend));
    }
  }
  return slowest;
}

DimGroup
dim_group(const DeviceMesh& mesh, size_t dim, const MeshOptions& options) {
  const auto label = dim_name(mesh, dim);
  const auto said = options.backend_override.find(label);
  DimGroup made;
  made.options =
      said == options.backend_override.end() ? GroupOptions() : said->second;
  made.choice = text_of(*made.options);
  const auto cost = options.cost.find(label);
  if (cost == options.cost.end()) {
    made.cost = cost_along(mesh, dim, *made.options);
  } else {
    made.cost = cost->second;
    made.is_priced = true;
    made.choice += " " + text_of(made.cost);
  }
  return made;
}

// Returns null for a pure mesh. Groups is the only implementation of
// MeshGroups.
const Groups* groups_in(const DeviceMesh& mesh) {
  return static_cast<const Groups*>(mesh_groups(mesh).get());
}

} // namespace

std::vector<int64_t>
ranks_along(const DeviceMesh& mesh, size_t dim, int64_t mine) {
  const auto shape = mesh.shape();
  const int64_t stride = ranks_within(shape, dim + 1);
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
  check_options(mesh, options);
  const auto& ranks = mesh.ranks();
  const auto mine = std::ranges::find(ranks, get_rank());
  std::vector<DimGroup> groups;
  for (size_t dim = 0; dim < mesh.shape().size(); ++dim) {
    auto& made = groups.emplace_back(dim_group(mesh, dim, options));
    if (mine != ranks.end()) {
      made.group = new_group(
          ranks_along(mesh, dim, mine - ranks.begin()),
          dim_name(mesh, dim),
          *made.options);
    }
  }
  return std::make_shared<Groups>(std::move(groups));
}

std::shared_ptr<MeshGroups> groups_of(const std::vector<GroupPtr>& given) {
  std::vector<DimGroup> groups;
  for (const auto& group : given) {
    groups.push_back(
        {group,
         c10::str(static_cast<const void*>(group.get())),
         {},
         false,
         {}});
  }
  return std::make_shared<Groups>(std::move(groups));
}

LinkCost link_cost(const DeviceMesh& mesh, int64_t dim) {
  const auto* groups = groups_in(mesh);
  return groups == nullptr ? LinkCost() : groups->along(dim).cost;
}

bool can_join(const DeviceMesh& mesh, int64_t a, int64_t b) {
  const auto* groups = groups_in(mesh);
  if (groups == nullptr) {
    return true;
  }
  const auto& one = groups->along(a).options;
  const auto& other = groups->along(b).options;
  return one && other && one->backend == other->backend &&
      one->timeout == other->timeout;
}

Group& joint_group(const DeviceMesh& mesh, c10::ArrayRef<int64_t> dims) {
  Group& first = get_group(mesh, dims[0]);
  return dims.size() == 1 ? first : groups_in(mesh)->joint(mesh, dims);
}

} // namespace detail

namespace {

const GroupPtr& group_along(const DeviceMesh& mesh, int64_t dim) {
  const auto* groups = detail::groups_in(mesh);
  DTENSOR_CHECK(
      groups != nullptr,
      "[get_group] this mesh has no process groups. Make it with "
      "init_device_mesh.");
  const GroupPtr& group =
      groups->along(detail::wrap_mesh_dim(mesh.ndim(), dim, "get_group")).group;
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
