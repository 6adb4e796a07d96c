// SPDX-License-Identifier: BSD-3-Clause
// Pairs of products that are cut, in a graph.
#include <dtensor/program/find_pairs_impl.h>

#include <dtensor/program/trial_impl.h>

#include <c10/util/StringUtil.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <utility>
#include <variant>

namespace dtensor::detail {
namespace {

// A plan for these numbers of ranks is one for any.
constexpr std::array<int64_t, 4> kTrialRanks = {2, 3, 5, 7};

// A call of linear or embedding with a weight that a module of its own has.
struct Product {
  size_t node = 0;
  std::string module;
  at::Tensor weight;
  Slot input = 0;
  Slot output = 0;
};

std::optional<Slot> slot_of(const GraphNode& node, size_t arg) {
  const auto* value = arg < node.args.size()
      ? std::get_if<ValueOperand>(&node.args[arg])
      : nullptr;
  return value == nullptr ? std::nullopt : std::optional(value->slot);
}

// The modules of a program whose weights a call may have.
template <class Impl>
std::vector<std::pair<std::string, at::Tensor>> weights_of(
    const torch::nn::Module& root) {
  std::vector<std::pair<std::string, at::Tensor>> weights;
  for (const auto& item : root.named_modules("", false)) {
    if (const auto* module = item.value()->as<Impl>()) {
      weights.emplace_back(item.key(), module->weight);
    }
  }
  return weights;
}

class Search {
 public:
  explicit Search(const ProgramState& state)
      : state_(state),
        graph_(state.graph),
        maker_(graph_.num_slots),
        users_(graph_.num_slots),
        in_outputs_(graph_.num_slots, false) {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const auto& node = graph_.nodes[i];
      for (const auto& arg : node.args) {
        visit_slots(arg, [&](Slot s) { users_[s].push_back(i); });
      }
      for (const auto& result : node.results) {
        for (const auto& slot : result.slots) {
          if (slot) {
            maker_[*slot] = i;
          }
        }
      }
    }
    for (const auto& output : graph_.outputs) {
      visit_slots(output, [&](Slot s) { in_outputs_[s] = true; });
    }
    for (const auto& mutation : graph_.mutations) {
      in_outputs_[mutation.value] = true;
    }
    find_products();
  }

  std::vector<PlanLine> plan() {
    if (!linears_.empty()) {
      for (const auto ranks : kTrialRanks) {
        trials_.push_back(std::make_unique<Trial>(state_, ranks));
      }
      for (const auto& [node, product] : linears_) {
        pair(product);
      }
      cut_outputs();
      cut_embeddings();
    }
    std::vector<PlanLine> lines;
    for (const auto& [node, line] : styles_) {
      lines.push_back(line);
    }
    return lines;
  }

 private:
  void find_products() {
    const auto linears = weights_of<torch::nn::LinearImpl>(*state_.module);
    const auto tables = weights_of<torch::nn::EmbeddingImpl>(*state_.module);
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const auto& target = graph_.nodes[i].target;
      if (target == "aten::linear") {
        add_product(i, linears, 1, 0, linears_);
      } else if (target == "aten::embedding") {
        add_product(i, tables, 0, 1, embeddings_);
      }
    }
    drop_shared(linears_);
    drop_shared(embeddings_);
  }

  // A module that is called twice would need one style for both.
  static void drop_shared(std::map<size_t, Product>& products) {
    std::map<std::string, int> calls;
    for (const auto& [node, product] : products) {
      ++calls[product.module];
    }
    std::erase_if(
        products, [&](const auto& p) { return calls[p.second.module] > 1; });
  }

  void add_product(
      size_t index,
      const std::vector<std::pair<std::string, at::Tensor>>& modules,
      size_t weight_arg,
      size_t input_arg,
      std::map<size_t, Product>& products) const {
    const auto& node = graph_.nodes[index];
    const auto weight = slot_of(node, weight_arg);
    const auto input = slot_of(node, input_arg);
    const auto given = weight ? parameter_at(*weight) : at::Tensor();
    if (!given.defined() || !input || is_taken_unread(*weight)) {
      return;
    }
    // Of tied modules the one that made the call.
    std::string name;
    for (const auto& [module, tensor] : modules) {
      if (tensor.is_same(given) && (name.empty() || module == node.module)) {
        name = module;
      }
    }
    if (!name.empty()) {
      products[index] = {
          index, name, given, *input, node.results[0].slots[0].value()};
    }
  }

  bool is_taken_unread(Slot slot) const {
    return std::any_of(
        users_[slot].begin(), users_[slot].end(), [&](size_t user) {
          return std::holds_alternative<Unread>(graph_.nodes[user].call);
        });
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

  // --- pairs -----------------------------------------------------------------

  struct Segment {
    std::vector<size_t> sources; // products
    std::vector<size_t> between; // calls, in order
  };

  // How the weights of a pair are cut.
  struct Cut {
    int64_t blocks = 1; // that stay whole, of each piece
    int64_t pieces = 1; // of the columns, one after the other
    int64_t unit_of(int64_t features) const {
      return features / pieces / blocks;
    }
  };

  // What leads from products to the input of this one; nothing if one of these
  // has a style already, or leads elsewhere.
  std::optional<Segment> segment_before(const Product& row) const {
    std::set<size_t> sources;
    std::set<size_t> between;
    std::vector<Slot> open = {row.input};
    while (!open.empty()) {
      const auto node = maker_[open.back()];
      open.pop_back();
      if (!node || between.count(*node) > 0) {
        continue;
      }
      if (linears_.count(*node) > 0) {
        if (styles_.count(*node) > 0) {
          return std::nullopt;
        }
        sources.insert(*node);
        continue;
      }
      between.insert(*node);
      for (const auto& arg : graph_.nodes[*node].args) {
        visit_slots(arg, [&](Slot slot) { open.push_back(slot); });
      }
    }
    if (sources.empty()) {
      return std::nullopt;
    }
    Segment segment{{sources.begin(), sources.end()}, {}};
    for (const auto node : between) {
      if (node > segment.sources.front()) { // others do not depend on them
        segment.between.push_back(node);
      }
    }
    return segment;
  }

  void pair(const Product& row) {
    if (styles_.count(row.node) > 0) {
      return;
    }
    const auto segment = segment_before(row);
    if (!segment) {
      return;
    }
    // One product may hold what is usually two or three: gate and up, or
    // queries, keys and values.
    const int64_t most = segment->sources.size() == 1 ? 3 : 1;
    for (int64_t pieces = 1; pieces <= most; ++pieces) {
      if (const auto cut = cut_of(*segment, row, pieces)) {
        take(*segment, row, *cut);
        return;
      }
    }
  }

  // In as many blocks as possible; nothing if it cannot be cut so.
  std::optional<Cut>
  cut_of(const Segment& segment, const Product& row, int64_t pieces) const {
    auto blocks = row.weight.size(1);
    for (const auto source : segment.sources) {
      const auto features = linears_.at(source).weight.size(0);
      if (features % pieces != 0) {
        return std::nullopt;
      }
      blocks = std::gcd(blocks, features / pieces);
    }
    for (auto count = blocks; count > 1; --count) {
      if (blocks % count == 0 && holds(segment, row, {count, pieces})) {
        return Cut{count, pieces};
      }
    }
    return std::nullopt;
  }

  // Whether everything between stays cut so, and nobody else needs what is cut.
  bool holds(const Segment& segment, const Product& row, const Cut& cut) const {
    return std::all_of(trials_.begin(), trials_.end(), [&](const auto& trial) {
      std::map<Slot, Placement> cuts;
      for (const auto source : segment.sources) {
        const auto& product = linears_.at(source);
        if (!trial->knows(product.output)) {
          return false;
        }
        const auto dim =
            static_cast<int64_t>(trial->sizes_of(product.output).size()) - 1;
        const auto unit = cut.unit_of(product.weight.size(0));
        cuts.emplace(
            product.output,
            cut.pieces == 1 ? Shard(dim, unit)
                            : StridedShard(dim, cut.pieces, unit));
      }
      std::vector<Slot> changed;
      const auto layout =
          trial->layout_after(cuts, segment.between, row.input, changed);
      return layout && is_cut(*trial, row, *layout, cut.blocks) &&
          std::all_of(changed.begin(), changed.end(), [&](Slot slot) {
               return stays_within(slot, segment, row);
             });
    });
  }

  // As the weight of `row` will be; where parts are alike, units may differ.
  static bool is_cut(
      const Trial& trial,
      const Product& row,
      const Placement& layout,
      int64_t blocks) {
    const auto sizes = trial.sizes_of(row.input);
    const auto dim = static_cast<int64_t>(sizes.size()) - 1;
    return trial.is_same_layout(
        row.input, layout, Shard(dim, row.weight.size(1) / blocks));
  }

  bool stays_within(Slot slot, const Segment& segment, const Product& row)
      const {
    if (in_outputs_[slot]) {
      return false;
    }
    return std::all_of(
        users_[slot].begin(), users_[slot].end(), [&](size_t user) {
          const bool is_within = std::binary_search(
              segment.between.begin(), segment.between.end(), user);
          const bool asks_size =
              std::holds_alternative<ScalarFunction>(graph_.nodes[user].call);
          return is_within || asks_size || user == row.node;
        });
  }

  void take(const Segment& segment, const Product& row, const Cut& cut) {
    const auto style = cut.pieces == 1
        ? std::string("colwise")
        : c10::str("colwise pieces=", cut.pieces);
    for (const auto source : segment.sources) {
      const auto& column = linears_.at(source);
      set_style(column, style, cut.unit_of(column.weight.size(0)));
      largest_ = std::max(largest_, column.weight.numel());
    }
    set_style(row, "rowwise", row.weight.size(1) / cut.blocks);
    largest_ = std::max(largest_, row.weight.numel());
  }

  void
  set_style(const Product& product, const std::string& style, int64_t unit) {
    styles_[product.node] = {
        product.module, unit == 1 ? style : c10::str(style, " unit=", unit)};
    cut_.push_back(product.weight);
  }

  // --- what is left ----------------------------------------------------------

  void cut_outputs() {
    for (const auto& [node, product] : linears_) {
      if (styles_.count(node) == 0 && in_outputs_[product.output] &&
          users_[product.output].empty() && !cut_.empty()) {
        set_style(product, "colwise", 1);
      }
    }
  }

  void cut_embeddings() {
    for (const auto& [node, product] : embeddings_) {
      const auto& table = product.weight;
      const bool is_tied =
          std::any_of(cut_.begin(), cut_.end(), [&table](const auto& weight) {
            return weight.is_same(table);
          });
      if (is_tied || (largest_ > 0 && table.numel() > largest_)) {
        set_style(product, "rowwise", 1);
      }
    }
  }

  const ProgramState& state_;
  const Graph& graph_;
  std::vector<std::optional<size_t>> maker_; // by value: the call
  std::vector<std::vector<size_t>> users_;
  std::vector<bool> in_outputs_;
  std::map<size_t, Product> linears_; // by call
  std::map<size_t, Product> embeddings_;
  std::vector<std::unique_ptr<Trial>> trials_;
  std::map<size_t, PlanLine> styles_; // by call
  std::vector<at::Tensor> cut_;
  int64_t largest_ = 0; // elements of a weight of a pair
};

} // namespace

std::vector<PlanLine> find_pairs(const ProgramState& state) {
  return Search(state).plan();
}

} // namespace dtensor::detail
