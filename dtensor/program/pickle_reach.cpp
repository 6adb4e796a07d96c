// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/pickle_objects_impl.h>
#include <dtensor/program/sample_inputs_impl.h>

#include <dtensor/format_text.h>

#include <algorithm>
#include <utility>

namespace dtensor::detail {
namespace {

struct Reach {
  uint32_t levels = 0; // 0: not known
  uint64_t visits = 1;
};

Reach reach_of(
    const std::vector<PickledItem>& held,
    const std::vector<Reach>& reaches,
    size_t bytes) {
  Reach reach{1, 1};
  for (const auto& item : held) {
    const auto& child = reaches[item.node];
    reach.levels = std::max(reach.levels, child.levels + 1);
    reach.visits += child.visits;
    if (reach.visits > kMaxPickledObjects + bytes) {
      refuse_pickle(
          "its pickle repeats objects so often that they are more than its "
          "size allows");
    }
  }
  if (reach.levels > kMaxPickleDepth + 1) {
    refuse_pickle(detail::format_text(
        "its pickle has more than {} nested levels", kMaxPickleDepth));
  }
  return reach;
}

} // namespace

// Visits the objects depth first, without recursion.
void check_reach(const std::vector<PickledObject>& nodes, size_t bytes) {
  std::vector<Reach> reaches(nodes.size());
  std::vector<bool> is_open(nodes.size(), false);
  std::vector<std::pair<PickleNode, size_t>> way;
  for (PickleNode root = 0; root < nodes.size(); ++root) {
    way.emplace_back(root, 0);
    while (!way.empty()) {
      auto& [node, next] = way.back();
      const auto& held = nodes[node].held;
      is_open[node] = true;
      if (reaches[node].levels != 0 || next == held.size()) {
        reaches[node] = reach_of(held, reaches, bytes);
        is_open[node] = false;
        way.pop_back();
        continue;
      }
      const auto child = held[next++].node;
      if (is_open[child]) {
        refuse_pickle("an object of its pickle contains itself");
      }
      if (reaches[child].levels == 0) {
        way.emplace_back(child, 0);
      }
    }
  }
}

} // namespace dtensor::detail
