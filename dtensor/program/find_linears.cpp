// SPDX-License-Identifier: BSD-3-Clause
// Finds the calls of linear and embedding with a module's weight. First
// recognizes products that run_decompositions() has decomposed:
//
//   addmm(bias, x, permute(weight, [1, 0]))            linear(x, weight, bias)
//   mm(x, permute(weight, [1, 0]))                     linear(x, weight)
//   bmm(x, view(expand(permute(weight, [1, 0]))))      linear(x, weight)
#include <dtensor/program/read_graph_impl.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <dtensor/program/find_pairs_impl.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <variant>
#include <vector>

namespace dtensor::detail {
namespace {

using c10::IValue;

constexpr const char* kLinear = "aten::linear";

std::optional<Slot> slot_of(const Operand& operand) {
  const auto* value = std::get_if<ValueOperand>(&operand);
  return value == nullptr ? std::nullopt : std::optional(value->slot);
}

// Returns the slot of the first result, if any.
std::optional<Slot> output_of(const GraphNode& node) {
  return node.results.empty() || node.results[0].slots.empty()
      ? std::nullopt
      : node.results[0].slots[0];
}

// Returns the parameter in that slot; null if there is none.
const GraphInput* parameter_in(const Graph& graph, Slot slot) {
  const auto found = std::ranges::find_if(graph.inputs, [&](const auto& input) {
    return input.slot == slot && input.kind == InputKind::kParameter;
  });
  return found == graph.inputs.end() ? nullptr : &*found;
}

class Decomposed {
 public:
  explicit Decomposed(Graph& graph)
      : graph_(graph),
        maker_(graph.num_slots),
        scope_(graph.nodes.size(), 0) {
    std::vector<size_t> open = {0};
    for (size_t i = 0; i < graph.nodes.size(); ++i) {
      const auto& node = graph.nodes[i];
      scope_[i] = open.back();
      if (std::holds_alternative<EndScope>(node.call)) {
        open.pop_back();
      } else if (
          std::holds_alternative<BeginGradMode>(node.call) ||
          std::holds_alternative<BeginAutocast>(node.call)) {
        open.push_back(i + 1);
      }
      visit_results(node, [&](Slot slot) { maker_[slot] = i; });
    }
  }

  void make_linears() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (auto args = linear_args(i)) {
        auto& node = graph_.nodes[i];
        node.args = *std::move(args);
        node.target = kLinear;
        node.call = c10::Dispatcher::singleton().findSchemaOrThrow(kLinear, "");
        changed_ = true;
      }
    }
    if (changed_) {
      remove_unused_views();
    }
  }

 private:
  // Returns (x, weight, bias) if the call is a product with a transposed
  // weight.
  std::optional<std::vector<Operand>> linear_args(size_t index) const {
    const auto& node = graph_.nodes[index];
    const bool adds = node.target == "aten::addmm" && node.args.size() == 5 &&
        is_one(node.args[3]) && is_one(node.args[4]);
    const bool is_batched = node.target == "aten::bmm";
    // Other overloads have more arguments, such as the dtype of the result.
    const bool is_plain =
        node.args.size() == 2 && (is_batched || node.target == "aten::mm");
    if (!adds && !is_plain) {
      return std::nullopt;
    }
    const size_t first = adds ? 1 : 0;
    const auto matrix = slot_of(node.args[first + 1]);
    const auto weight =
        matrix ? weight_of(*matrix, index, is_batched) : std::nullopt;
    const bool fits = weight && slot_of(node.args[first]) &&
        (!adds || is_bias_of(*weight, node.args[0]));
    return fits ? std::optional(std::vector<Operand>{
                      node.args[first],
                      ValueOperand{*weight},
                      adds ? node.args[0] : Operand(IValue())})
                : std::nullopt;
  }

  static bool is_one(const Operand& operand) {
    const auto* constant = std::get_if<IValue>(&operand);
    return constant != nullptr && constant->isScalar() &&
        constant->toScalar().equal(1);
  }

  const GraphInput* parameter(Slot slot) const {
    return parameter_in(graph_, slot);
  }

  bool is_bias_of(Slot weight, const Operand& operand) const {
    const auto slot = slot_of(operand);
    const auto* bias = slot ? parameter(*slot) : nullptr;
    return bias != nullptr && bias->sizes.size() == 1 &&
        bias->sizes[0].value == parameter(weight)->sizes[0].value;
  }

  // Returns the call that made the value if it is in the same scope as `user`.
  // Another scope may record gradients differently.
  const GraphNode* maker_of(Slot slot, size_t user) const {
    const auto index = maker_[slot];
    return index && scope_[*index] == scope_[user] ? &graph_.nodes[*index]
                                                   : nullptr;
  }

  // Returns the parameter whose transpose is the value, possibly expanded (a
  // copy without memory).
  std::optional<Slot> weight_of(Slot slot, size_t user, bool is_batched) const {
    const auto* node = maker_of(slot, user);
    while (is_batched && node != nullptr && !node->args.empty() &&
           (node->target == "aten::view" || node->target == "aten::expand") &&
           keeps_matrix(*node)) {
      const auto from = slot_of(node->args[0]);
      node = from ? maker_of(*from, user) : nullptr;
    }
    if (node == nullptr || !transposes(*node)) {
      return std::nullopt;
    }
    const auto weight = slot_of(node->args[0]);
    const auto* held = weight ? parameter(*weight) : nullptr;
    return held != nullptr && held->sizes.size() == 2 ? weight : std::nullopt;
  }

  // True if a view has the same matrices: the last two sizes are unchanged.
  bool keeps_matrix(const GraphNode& node) const {
    const auto from = slot_of(node.args[0]);
    const auto to = output_of(node);
    if (!from || !to) {
      return false;
    }
    const auto before = graph_.metas.find(*from);
    const auto after = graph_.metas.find(*to);
    if (before == graph_.metas.end() || after == graph_.metas.end()) {
      return false;
    }
    const auto& a = before->second.sizes;
    const auto& b = after->second.sizes;
    return a.size() >= 2 && b.size() >= 2 &&
        std::equal(a.end() - 2, a.end(), b.end() - 2);
  }

  static bool transposes(const GraphNode& node) {
    if (node.target == "aten::t") {
      return node.args.size() == 1;
    }
    const auto* first =
        node.args.size() > 1 ? std::get_if<IValue>(&node.args[1]) : nullptr;
    if (first == nullptr) {
      return false;
    }
    if (node.target == "aten::permute" && first->isIntList()) {
      const auto dims = first->toIntVector();
      return dims.size() == 2 && (dims[0] + 2) % 2 == 1 &&
          (dims[1] + 2) % 2 == 0;
    }
    const auto* second =
        node.args.size() > 2 ? std::get_if<IValue>(&node.args[2]) : nullptr;
    return node.target == "aten::transpose" && second != nullptr &&
        first->isInt() && second->isInt() &&
        (first->toInt() - second->toInt()) % 2 != 0;
  }

  // Removes unused views, from the last call to the first, so that a view of a
  // removed view is removed too.
  void remove_unused_views() {
    std::vector<bool> used(graph_.num_slots, false);
    const auto use = [&](Slot slot) { used[slot] = true; };
    for (const auto& output : graph_.outputs) {
      visit_slots(output, use);
    }
    for (const auto& mutation : graph_.mutations) {
      used[mutation.value] = true;
    }
    std::vector<GraphNode> kept;
    for (auto node = graph_.nodes.rbegin(); node != graph_.nodes.rend();
         ++node) {
      if (is_view(*node) && !gives_used(*node, used)) {
        continue;
      }
      for (const auto& arg : node->args) {
        visit_slots(arg, use);
      }
      kept.push_back(std::move(*node));
    }
    std::ranges::reverse(kept);
    graph_.nodes = std::move(kept);
  }

  static bool is_view(const GraphNode& node) {
    return node.target == "aten::permute" || node.target == "aten::t" ||
        node.target == "aten::transpose" || node.target == "aten::expand" ||
        node.target == "aten::view";
  }

  static bool gives_used(const GraphNode& node, const std::vector<bool>& used) {
    return std::ranges::any_of(node.results, [&](const auto& result) {
      return std::ranges::any_of(
          result.slots, [&](const auto& slot) { return slot && used[*slot]; });
    });
  }

  Graph& graph_;
  std::vector<std::optional<size_t>> maker_; // by value: the call that made it
  std::vector<size_t> scope_;                // scope by call
  bool changed_ = false;
};

} // namespace

void find_linears(Graph& graph) {
  Decomposed(graph).make_linears();
}

namespace {

using NamedWeights = std::vector<std::pair<std::string, at::Tensor>>;

// Returns the slot of an argument, if the call has the argument.
std::optional<Slot> slot_of(const GraphNode& node, size_t arg) {
  return arg < node.args.size() ? slot_of(node.args[arg]) : std::nullopt;
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

// Returns the values that code uses that was not read.
std::set<Slot> used_by_unread(const Graph& graph) {
  std::set<Slot> used;
  for (const auto& node : graph.nodes) {
    if (std::holds_alternative<Unread>(node.call)) {
      for (const auto& arg : node.args) {
        visit_slots(arg, [&](Slot slot) { used.insert(slot); });
      }
    }
  }
  return used;
}

// Returns the parameter in that slot; undefined if there is none.
at::Tensor parameter_at(const ProgramState& state, Slot slot) {
  const auto* const input = parameter_in(state.graph, slot);
  return input == nullptr
      ? at::Tensor()
      : state.inputs[static_cast<size_t>(input - state.graph.inputs.data())];
}

Products find_calls(
    const ProgramState& state,
    const char* target,
    const NamedWeights& modules,
    size_t weight_arg,
    size_t input_arg) {
  const auto unread = used_by_unread(state.graph);
  Products products;
  for (size_t i = 0; i < state.graph.nodes.size(); ++i) {
    const auto& node = state.graph.nodes[i];
    const bool is_target = node.target == target;
    const auto weight = is_target ? slot_of(node, weight_arg) : std::nullopt;
    const auto input = slot_of(node, input_arg);
    const auto output = output_of(node);
    const auto given = weight ? parameter_at(state, *weight) : at::Tensor();
    if (!given.defined() || !input || !output || unread.count(*weight) > 0) {
      continue;
    }
    // Name of the module that made the call, if modules are tied.
    std::string name;
    for (const auto& [module, tensor] : modules) {
      if (tensor.is_same(given) && (name.empty() || module == node.module)) {
        name = module;
      }
    }
    if (!name.empty()) {
      products[i] = {i, name, given, *input, *output};
    }
  }
  return products;
}

} // namespace

Products find_linear_calls(
    const ProgramState& state,
    const torch::nn::Module& root) {
  return find_calls(
      state, "aten::linear", weights_of<torch::nn::LinearImpl>(root), 1, 0);
}

Products find_embedding_calls(
    const ProgramState& state,
    const torch::nn::Module& root) {
  return find_calls(
      state,
      "aten::embedding",
      weights_of<torch::nn::EmbeddingImpl>(root),
      0,
      1);
}

} // namespace dtensor::detail
