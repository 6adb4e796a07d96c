// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/tensor/inner_nodes_impl.h>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <numeric>
#include <unordered_map>
#include <utility>

namespace dtensor::detail {
namespace {

using torch::autograd::Edge;
using torch::autograd::GraphTask;
using torch::autograd::variable_list;

// A matmul of three dimensions takes three.
constexpr size_t kMost = 6;

// A node asks whether the graph task wants what it computes, and the task knows
// only nodes that it found itself. (LibTorch's own function to say so, which
// CopySlices calls, is not exported.)
void want(Node* node) {
  const auto* known = torch::autograd::get_current_graph_task_exec_info();
  if (known != nullptr && !known->empty()) {
    auto& infos =
        const_cast<std::unordered_map<Node*, GraphTask::ExecInfo>&>(*known);
    infos[node].needed_ = true;
  }
}

} // namespace

// Walks from the result; false where something does not fit.
struct InnerNodes::Search {
  bool add(const Edge& edge) {
    if (found.nodes_.size() == kMost || edge.function.get() == before) {
      return false;
    }
    const auto index = found.nodes_.size();
    found.nodes_.push_back({edge.function, edge.input_nr, {}});
    for (const auto& next : edge.function->next_edges()) {
      const auto target = target_of(next);
      if (!target) {
        return false;
      }
      found.nodes_[index].targets.push_back(*target);
    }
    return true;
  }

  std::optional<Target> target_of(const Edge& edge) {
    if (!edge.is_valid()) {
      return Target{};
    }
    if (edge.function.get() == before) {
      return exit_at({edge.input_nr, {}});
    }
    if (std::find(passing.begin(), passing.end(), edge) != passing.end()) {
      return exit_at({-1, edge});
    }
    const bool is_known = std::any_of(
        found.nodes_.begin(), found.nodes_.end(), [&](const Inner& inner) {
          return inner.node == edge.function;
        });
    const auto index = static_cast<int32_t>(found.nodes_.size());
    if (is_known || !add(edge)) {
      return std::nullopt;
    }
    return Target{false, index};
  }

  // By which one gradient leaves: two would have to be added up.
  std::optional<Target> exit_at(Exit exit) {
    for (const auto& known : found.exits_) {
      if (known.slot == exit.slot && known.edge == exit.edge) {
        return std::nullopt;
      }
    }
    found.exits_.push_back(std::move(exit));
    return Target{true, static_cast<int32_t>(found.exits_.size()) - 1};
  }

  const Node* before;
  c10::ArrayRef<Edge> passing;
  InnerNodes found;
};

std::optional<InnerNodes> InnerNodes::between(
    const at::Tensor& result,
    const Node* before,
    c10::ArrayRef<Edge> passing) {
  Search search{before, passing, InnerNodes()};
  const auto& node = result.grad_fn();
  if (node == nullptr ||
      !search.add({node, static_cast<uint32_t>(result.output_nr())})) {
    return std::nullopt;
  }
  return std::move(search.found);
}

c10::SmallVector<size_t, 4> InnerNodes::exits_by_slot() const {
  c10::SmallVector<size_t, 4> order(exits_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return exits_[a].slot < exits_[b].slot;
  });
  return order;
}

// To another inner node, or to the node before, which run when we say so. What
// passes goes to a node that the task knows.
bool InnerNodes::stays_inside(const Target& target) const {
  return target.index >= 0 &&
      (!target.leaves || exits_[static_cast<size_t>(target.index)].slot >= 0);
}

c10::SmallVector<at::Tensor, 4> InnerNodes::run(at::Tensor grad) const {
  c10::SmallVector<at::Tensor, 4> left(exits_.size());
  c10::SmallVector<at::Tensor, 3> waiting(nodes_.size());
  waiting[0] = std::move(grad);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (!waiting[i].defined()) {
      continue;
    }
    const auto& node = nodes_[i].node;
    const auto& targets = nodes_[i].targets;
    for (size_t k = 0; k < targets.size(); ++k) {
      if (stays_inside(targets[k])) {
        want(node->next_edge(k).function.get());
      }
    }
    variable_list grads(node->num_inputs());
    grads[nodes_[i].input_nr] = std::move(waiting[i]);
    auto results = (*node)(std::move(grads));
    torch::autograd::validate_outputs(
        node->next_edges(), results, [&](const std::string& problem) {
          return node->name() + ": " + problem;
        });
    for (size_t k = 0; k < targets.size(); ++k) {
      if (targets[k].index >= 0) {
        auto& place = targets[k].leaves
            ? left[static_cast<size_t>(targets[k].index)]
            : waiting[static_cast<size_t>(targets[k].index)];
        place = std::move(results[k]);
      }
    }
  }
  return left;
}

void InnerNodes::release_variables() {
  for (auto& inner : nodes_) {
    inner.node->release_variables();
  }
}

void InnerNodes::will_release_variables() {
  for (auto& inner : nodes_) {
    inner.node->will_release_variables();
  }
}

std::string InnerNodes::name() const {
  return nodes_[0].node->name();
}

} // namespace dtensor::detail
