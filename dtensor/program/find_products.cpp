// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/find_pairs_impl.h>

#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <vector>

namespace dtensor::detail {
namespace {

using NamedWeights = std::vector<std::pair<std::string, at::Tensor>>;

std::optional<Slot> slot_of(const GraphNode& node, size_t arg) {
  const auto* value = arg < node.args.size()
      ? std::get_if<ValueOperand>(&node.args[arg])
      : nullptr;
  return value == nullptr ? std::nullopt : std::optional(value->slot);
}

// Returns the names and weights of all modules of type Impl.
template <class Impl>
NamedWeights weights_of(const torch::nn::Module& root) {
  NamedWeights weights;
  for (const auto& item : root.named_modules("", false)) {
    if (const auto* module = item.value()->as<Impl>()) {
      weights.emplace_back(item.key(), module->weight);
    }
  }
  return weights;
}

class ProductFinder {
 public:
  explicit ProductFinder(const ProgramState& state)
      : state_(state),
        graph_(state.graph) {
    for (const auto& node : graph_.nodes) {
      if (std::holds_alternative<Unread>(node.call)) {
        for (const auto& arg : node.args) {
          visit_slots(arg, [&](Slot slot) { used_by_unread_.insert(slot); });
        }
      }
    }
  }

  Products find(
      const char* target,
      const NamedWeights& modules,
      size_t weight_arg,
      size_t input_arg) const {
    Products products;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (graph_.nodes[i].target == target) {
        add(i, modules, weight_arg, input_arg, products);
      }
    }
    return products;
  }

 private:
  void add(
      size_t index,
      const NamedWeights& modules,
      size_t weight_arg,
      size_t input_arg,
      Products& products) const {
    const auto& node = graph_.nodes[index];
    const auto weight = slot_of(node, weight_arg);
    const auto input = slot_of(node, input_arg);
    const auto output = output_of(node);
    const auto given = weight ? parameter_at(*weight) : at::Tensor();
    if (!given.defined() || !input || !output ||
        used_by_unread_.count(*weight) > 0) {
      return;
    }
    // If modules are tied, the name of the module that made the call.
    std::string name;
    for (const auto& [module, tensor] : modules) {
      if (tensor.is_same(given) && (name.empty() || module == node.module)) {
        name = module;
      }
    }
    if (!name.empty()) {
      products[index] = {index, name, given, *input, *output};
    }
  }

  static std::optional<Slot> output_of(const GraphNode& node) {
    return node.results.empty() || node.results[0].slots.empty()
        ? std::nullopt
        : node.results[0].slots[0];
  }

  at::Tensor parameter_at(Slot slot) const {
    for (size_t i = 0; i < graph_.inputs.size(); ++i) {
      if (graph_.inputs[i].slot == slot &&
          graph_.inputs[i].kind == InputKind::kParameter) {
        return state_.inputs[i];
      }
    }
    return {};
  }

  const ProgramState& state_;
  const Graph& graph_;
  std::set<Slot> used_by_unread_;
};

} // namespace

Products find_linear_calls(
    const ProgramState& state,
    const torch::nn::Module& root) {
  return ProductFinder(state).find(
      "aten::linear", weights_of<torch::nn::LinearImpl>(root), 1, 0);
}

Products find_embedding_calls(
    const ProgramState& state,
    const torch::nn::Module& root) {
  return ProductFinder(state).find(
      "aten::embedding", weights_of<torch::nn::EmbeddingImpl>(root), 0, 1);
}

} // namespace dtensor::detail
