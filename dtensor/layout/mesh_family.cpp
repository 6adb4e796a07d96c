// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/layout/mesh_family_impl.h>

#include <algorithm>
#include <utility>

namespace dtensor::detail {

std::vector<StatePtr> family(const StatePtr& state) {
  std::vector<StatePtr> members{state};
  const std::lock_guard<std::mutex> lock(state->mutex);
  for (const auto& weak : state->sliced_from) {
    if (auto parent = weak.lock()) {
      members.push_back(std::move(parent));
    }
  }
  return members;
}

void remember_parents(const MeshState& slice, const StatePtr& parent) {
  const std::vector<StatePtr> parents = family(parent);
  const std::lock_guard<std::mutex> lock(slice.mutex);
  auto& known = slice.sliced_from;
  std::erase_if(known, [](const auto& weak) { return weak.expired(); });
  for (const StatePtr& candidate : parents) {
    const bool is_known =
        std::any_of(known.begin(), known.end(), [&](const auto& weak) {
          return !weak.owner_before(candidate) && !candidate.owner_before(weak);
        });
    if (!is_known) {
      known.push_back(candidate);
    }
  }
}

DeviceMesh with_groups_of(
    const MeshState& origin,
    const DeviceMesh& pure,
    const char* where) {
  return origin.groups ? with_groups(pure, origin.groups->make_for(pure, where))
                       : pure;
}

} // namespace dtensor::detail
