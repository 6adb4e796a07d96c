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

// Maximum number of nodes. A matmul of 3-D tensors has three.
constexpr size_t kMost = 6;

// Marks `node` as needed by the graph task that is running. A node computes
// only gradients for needed nodes, and the task does not contain inner nodes.
// (LibTorch's own function for this, called by CopySlices, is not exported.)
void want(Node* node) {
  const auto* known = torch::autograd::get_current_graph_task_exec_info();
  if (known != nullptr && !known->empty()) {
    auto& infos =
        const_cast<std::unordered_map<Node*, GraphTask::ExecInfo>&>(*known);
    infos[node].needed_ = true;
  }
}

// True if the node computes each gradient separately.
bool computes_each_alone(const Node& node) {
  const auto name = node.name();
  return name == "AddmmBackward0" || name == "MmBackward0" ||
      name == "BmmBackward0";
}

// Temporarily removes all edges of the node except `wanted`; null keeps all.
// The node computes only the gradients of its remaining edges.
class OnlyEdges {
 public:
  OnlyEdges(Node& node, const ExitSet* wanted) : node_(node) {
    if (wanted == nullptr) {
      return;
    }
    all_ = node.next_edges();
    for (size_t k = 0; k < all_.size(); ++k) {
      if (!(*wanted)[k]) {
        node.next_edges()[k] = {};
      }
    }
  }
  ~OnlyEdges() {
    if (!all_.empty()) {
      node_.next_edges() = std::move(all_);
    }
  }
  OnlyEdges(const OnlyEdges&) = delete;
  OnlyEdges& operator=(const OnlyEdges&) = delete;

 private:
  Node& node_;
  torch::autograd::edge_list all_;
};

} // namespace

// A depth-first walk from the result. Functions return false, or nullopt, if
// the subgraph cannot be fused.
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
    if (std::ranges::find(passing, edge) != passing.end()) {
      return exit_at({-1, edge});
    }
    const bool is_known = std::ranges::any_of(
        found.nodes_,
        [&](const Inner& inner) { return inner.node == edge.function; });
    const auto index = static_cast<int32_t>(found.nodes_.size());
    if (is_known || !add(edge)) {
      return std::nullopt;
    }
    return Target{false, index};
  }

  // Adds an exit. Only one gradient may leave by each exit, because two
  // gradients would have to be summed.
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
  std::ranges::sort(
      order, {}, [&](size_t i) { return std::pair(exits_[i].slot, i); });
  return order;
}

// True if the gradient goes to another inner node or to the preceding node,
// which this class runs itself. A passing edge leads to a node in the graph
// task.
bool InnerNodes::stays_inside(const Target& target) const {
  return target.index >= 0 &&
      (!target.leaves || exits_[static_cast<size_t>(target.index)].slot >= 0);
}

// Computes the targets that lead to `exits`. Nodes are ordered after the nodes
// that lead to them, so the loop runs backward.
InnerNodes::Targets InnerNodes::leading_to(const ExitSet& exits) const {
  Targets some(nodes_.size());
  for (size_t i = nodes_.size(); i-- > 0;) {
    const auto& targets = nodes_[i].targets;
    for (size_t k = 0; k < targets.size(); ++k) {
      const auto index = static_cast<size_t>(targets[k].index);
      some[i][k] = targets[k].index >= 0 &&
          (targets[k].leaves ? exits[index] : some[index].any());
    }
  }
  return some;
}

// True if the nodes may run in two passes, `early` exits first. A node with
// targets of both kinds runs in both passes, which only nodes that compute each
// gradient separately support.
bool InnerNodes::may_run_twice(const ExitSet& early) const {
  const auto is_short = [](const auto& list) {
    return list.size() <= ExitSet().size();
  };
  const bool fits =
      is_short(exits_) && std::ranges::all_of(nodes_, [&](const Inner& inner) {
        return is_short(inner.targets);
      });
  if (!fits) {
    return false;
  }
  const auto first = leading_to(early);
  const auto rest = leading_to(~early);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const auto& node = *nodes_[i].node;
    if (first[i].any() && rest[i].any() && nodes_[i].targets.size() > 1 &&
        !computes_each_alone(node)) {
      return false;
    }
  }
  return true;
}

// Runs a node for the `wanted` targets; null: all. With `again`, the node will
// run again for other targets, so its incoming gradient is kept.
void InnerNodes::run_node(
    size_t i,
    const ExitSet* wanted,
    bool again,
    Grads& grads) const {
  const auto& node = nodes_[i].node;
  const auto& targets = nodes_[i].targets;
  const OnlyEdges only(*node, wanted);
  for (size_t k = 0; k < targets.size(); ++k) {
    if (stays_inside(targets[k]) && node->next_edge(k).is_valid()) {
      want(node->next_edge(k).function.get());
    }
  }
  variable_list given(node->num_inputs());
  given[nodes_[i].input_nr] =
      again ? grads.waiting[i] : std::move(grads.waiting[i]);
  auto results = (*node)(std::move(given));
  torch::autograd::validate_outputs(
      node->next_edges(), results, [&](const std::string& problem) {
        return node->name() + ": " + problem;
      });
  for (size_t k = 0; k < targets.size(); ++k) {
    if (targets[k].index >= 0 && (wanted == nullptr || (*wanted)[k])) {
      const auto index = static_cast<size_t>(targets[k].index);
      (targets[k].leaves ? grads.left : grads.waiting)[index] =
          std::move(results[k]);
    }
  }
}

InnerNodes::Locals InnerNodes::run(
    at::Tensor grad,
    const ExitSet& early,
    c10::function_ref<void(Locals&)> between) const {
  Grads grads{Locals(nodes_.size()), Locals(exits_.size())};
  grads.waiting[0] = std::move(grad);
  if (early.none() || !may_run_twice(early)) {
    run_nodes(nullptr, nullptr, grads);
    return std::move(grads.left);
  }
  const auto first = leading_to(early);
  auto rest = leading_to(~early);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    // A target that leads to both kinds of exits runs once, in the first pass.
    rest[i] &= ~first[i];
  }
  run_nodes(&first, &rest, grads);
  between(grads.left);
  run_nodes(&rest, nullptr, grads);
  return std::move(grads.left);
}

void InnerNodes::run_nodes(
    const Targets* wanted,
    const Targets* later,
    Grads& grads) const {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const bool runs = wanted == nullptr || (*wanted)[i].any();
    if (runs && grads.waiting[i].defined()) {
      run_node(
          i,
          wanted == nullptr ? nullptr : &(*wanted)[i],
          later != nullptr && (*later)[i].any(),
          grads);
    }
  }
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
