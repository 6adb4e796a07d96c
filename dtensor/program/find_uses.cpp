// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/read_graph_impl.h>

namespace dtensor::detail {

void find_uses(Graph& graph) {
  std::vector<bool> seen(graph.num_slots, false);
  const auto keep = [&](Slot slot) { seen[slot] = true; };
  for (const auto& output : graph.outputs) {
    visit_slots(output, keep);
  }
  for (const auto& mutation : graph.mutations) {
    keep(mutation.value);
    keep(graph.inputs[mutation.input].slot);
  }
  for (auto node = graph.nodes.rbegin(); node != graph.nodes.rend(); ++node) {
    const auto use = [&](Slot slot) {
      if (!seen[slot]) {
        seen[slot] = true;
        node->last_uses.push_back(slot);
      }
    };
    for (const auto& result : node->results) {
      for (const auto& slot : result.slots) {
        if (slot) {
          use(*slot);
        }
      }
    }
    for (const auto& arg : node->args) {
      visit_slots(arg, use);
    }
  }
  graph.uses.assign(graph.num_slots, {});
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const auto& args = graph.nodes[i].args;
    for (size_t arg = 0; arg < args.size(); ++arg) {
      if (const auto* value = std::get_if<ValueOperand>(&args[arg])) {
        graph.uses[value->slot].push_back({i, arg});
      }
    }
  }
}

} // namespace dtensor::detail
