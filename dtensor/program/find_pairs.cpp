// SPDX-License-Identifier: BSD-3-Clause
// Finds pairs of products in a graph that are sharded together.
#include <dtensor/program/find_pairs_impl.h>

#include <c10/util/StringUtil.h>
#include <dtensor/format_text.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <variant>

namespace dtensor::detail {
namespace {

// Numbers of ranks for which a plan is checked. A plan that is valid for all of
// these is valid for any number.
constexpr std::array<int64_t, 4> kTrialRanks = {2, 3, 5, 7};

class Search {
 public:
  Search(const ProgramState& state, const torch::nn::Module& root)
      : state_(state),
        graph_(state.graph),
        linears_(find_linear_calls(state, root)),
        embeddings_(find_embedding_calls(state, root)),
        maker_(graph_.num_slots),
        users_(graph_.num_slots),
        in_outputs_(graph_.num_slots, false) {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const auto& node = graph_.nodes[i];
      for (const auto& arg : node.args) {
        visit_slots(arg, [&](Slot s) { users_[s].push_back(i); });
      }
      visit_results(node, [&](Slot slot) { maker_[slot] = i; });
    }
    for (const auto& output : graph_.outputs) {
      visit_slots(output, [&](Slot s) { in_outputs_[s] = true; });
    }
    for (const auto& mutation : graph_.mutations) {
      in_outputs_[mutation.value] = true;
    }
  }

  std::vector<PlanEntryText> plan() {
    if (!linears_.empty()) {
      for (const auto ranks : kTrialRanks) {
        trials_.push_back(std::make_unique<Trial>(state_, ranks));
      }
      for (const auto& [node, product] : linears_) {
        pair(product);
      }
      drop_incomplete_pairs();
      shard_outputs();
      shard_embeddings();
    }
    std::vector<PlanEntryText> lines;
    for (const auto& [node, line] : styles_) {
      if (std::ranges::find(lines, line) == lines.end()) {
        lines.push_back(line);
      }
    }
    return lines;
  }

 private:
  // --- pairs -----------------------------------------------------------------

  struct Segment {
    std::vector<size_t> sources; // products at the start of the segment
    std::vector<size_t> between; // calls in between, in order
  };

  // Describes how the weights of a pair are sharded.
  struct PairSharding {
    int64_t blocks = 1; // blocks of each fused projection that stay on one rank
    int64_t pieces = 1; // fused projections, one after the other in the columns
    int64_t unit_of(int64_t features) const {
      return features / pieces / blocks;
    }
  };

  // Collects the products and calls that lead to the input of `row`. Returns
  // nothing if a product already has another style or is used for other
  // results.
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
        const auto style = styles_.find(*node);
        if (style == styles_.end()) {
          sources.insert(*node);
        } else if (!style->second.style.starts_with("rowwise")) {
          return std::nullopt;
        }
        continue; // the result of a rowwise product is replicated
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
      // Earlier calls do not depend on the sources.
      if (node > segment.sources.front()) {
        segment.between.push_back(node);
      }
    }
    return segment;
  }

  void pair(const Product& row) {
    const auto segment = segment_before(row);
    if (!segment) {
      return;
    }
    // One product may fuse two or three projections: gate and up, or queries,
    // keys and values.
    const int64_t most = segment->sources.size() == 1 ? 3 : 1;
    for (int64_t pieces = 1; pieces <= most; ++pieces) {
      if (const auto sharding = sharding_of(*segment, row, pieces)) {
        add_pair(*segment, row, *sharding);
        return;
      }
    }
  }

  // Returns the sharding with the most blocks; nothing if the segment cannot be
  // sharded with `pieces` fused projections.
  std::optional<PairSharding> sharding_of(
      const Segment& segment,
      const Product& row,
      int64_t pieces) const {
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
        return PairSharding{count, pieces};
      }
    }
    return std::nullopt;
  }

  // Returns true if all calls of the segment keep this sharding without
  // communication and no call outside the segment needs the sharded values.
  bool holds(
      const Segment& segment,
      const Product& row,
      const PairSharding& sharding) const {
    return std::ranges::all_of(trials_, [&](const auto& trial) {
      std::map<Slot, Placement> sharded;
      for (const auto source : segment.sources) {
        const auto& product = linears_.at(source);
        if (!trial->is_known(product.output)) {
          return false;
        }
        const auto dim =
            static_cast<int64_t>(trial->sizes_of(product.output).size()) - 1;
        const auto unit = sharding.unit_of(product.weight.size(0));
        sharded.emplace(
            product.output,
            sharding.pieces == 1 ? Shard(dim, unit)
                                 : StridedShard(dim, sharding.pieces, unit));
      }
      std::vector<Slot> changed;
      const auto layout =
          trial->layout_after(sharded, segment.between, row.input, changed);
      return layout && is_sharded(*trial, row, *layout, sharding.blocks) &&
          std::ranges::all_of(changed, [&](Slot slot) {
               return stays_within(slot, segment, row);
             });
    });
  }

  // Returns true if `layout` matches the sharding that the weight of `row` will
  // have. Units may differ if the shards are equal.
  static bool is_sharded(
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
    return std::ranges::all_of(users_[slot], [&](size_t user) {
      const bool is_within = std::binary_search(
          segment.between.begin(), segment.between.end(), user);
      const bool queries_size =
          std::holds_alternative<ScalarFunction>(graph_.nodes[user].call);
      return is_within || queries_size || user == row.node;
    });
  }

  void add_pair(
      const Segment& segment,
      const Product& row,
      const PairSharding& sharding) {
    const auto style = sharding.pieces == 1
        ? std::string("colwise")
        : c10::str("colwise fused_projections=", sharding.pieces);
    std::map<size_t, PlanEntryText> lines;
    for (const auto source : segment.sources) {
      const auto& column = linears_.at(source);
      lines[source] =
          line_of(column, style, sharding.unit_of(column.weight.size(0)));
    }
    lines[row.node] =
        line_of(row, "rowwise", row.weight.size(1) / sharding.blocks);
    if (!have_consistent_styles(lines)) {
      return;
    }
    for (const auto& [node, line] : lines) {
      pair_of_[node] = row.node;
      styles_[node] = line;
    }
  }

  static PlanEntryText
  line_of(const Product& product, const std::string& style, int64_t unit) {
    return {
        product.module,
        unit == 1 ? style
                  : detail::format_text("{} multiple_of={}", style, unit)};
  }

  // A weight that several calls or modules share is sharded in one way.
  bool have_consistent_styles(
      const std::map<size_t, PlanEntryText>& lines) const {
    std::map<const at::TensorImpl*, std::string> styles;
    const auto agrees = [&](const auto& one) {
      const auto& [node, line] = one;
      const auto* weight = linears_.at(node).weight.unsafeGetTensorImpl();
      return styles.emplace(weight, line.style).first->second == line.style;
    };
    return std::ranges::all_of(lines, agrees) &&
        std::ranges::all_of(styles_, agrees);
  }

  // Drops pairs of modules that have a call outside any pair. A style belongs
  // to a module, so the style applies to all of its calls or to none.
  void drop_incomplete_pairs() {
    for (bool again = true; again;) {
      again = false;
      for (const auto& [node, product] : linears_) {
        if (styles_.count(node) > 0) {
          continue;
        }
        for (const auto& [other, line] : std::map(styles_)) {
          if (line.pattern == product.module) {
            drop_pair(pair_of_.at(other));
            again = true;
          }
        }
      }
    }
  }

  void drop_pair(size_t row) {
    std::erase_if(styles_, [&](const auto& one) {
      return pair_of_.at(one.first) == row;
    });
  }

  // --- remaining products ----------------------------------------------------

  // Shards products whose results, in all their calls, are only results of the
  // program.
  void shard_outputs() {
    if (styles_.empty()) {
      return;
    }
    std::set<std::string> others;
    for (const auto& [node, product] : linears_) {
      const bool gives_result = styles_.count(node) == 0 &&
          in_outputs_[product.output] && users_[product.output].empty();
      if (!gives_result) {
        others.insert(product.module);
      }
    }
    for (const auto& [node, product] : linears_) {
      const auto line = line_of(product, "colwise", 1);
      if (others.count(product.module) == 0 &&
          have_consistent_styles({{node, line}})) {
        styles_[node] = line;
      }
    }
  }

  void shard_embeddings() {
    std::map<size_t, PlanEntryText> found;
    const auto largest = largest_in_pairs();
    for (const auto& [node, product] : embeddings_) {
      const auto& table = product.weight;
      const auto* tied = style_of(table);
      // A tied rowwise embedding is sharded along dimension 0, like the weight
      // of a colwise product.
      const bool is_tied = tied != nullptr && *tied == "colwise";
      if (is_tied ||
          (tied == nullptr && largest > 0 && table.numel() > largest)) {
        found[node] = line_of(product, "rowwise", 1);
      }
    }
    styles_.merge(found);
  }

  // Elements of the largest weight in a pair.
  int64_t largest_in_pairs() const {
    int64_t largest = 0;
    for (const auto& [node, row] : pair_of_) {
      if (styles_.count(node) > 0) {
        largest = std::max(largest, linears_.at(node).weight.numel());
      }
    }
    return largest;
  }

  const std::string* style_of(const at::Tensor& weight) const {
    const auto found = std::ranges::find_if(styles_, [&](const auto& one) {
      return linears_.at(one.first).weight.is_same(weight);
    });
    return found == styles_.end() ? nullptr : &found->second.style;
  }

  const ProgramState& state_;
  const Graph& graph_;
  Products linears_;
  Products embeddings_;
  std::vector<std::optional<size_t>> maker_; // by value: the call that made it
  std::vector<std::vector<size_t>> users_;
  std::vector<bool> in_outputs_;
  std::vector<std::unique_ptr<Trial>> trials_;
  std::map<size_t, PlanEntryText> styles_; // by call
  std::map<size_t, size_t> pair_of_; // by call: the rowwise product of its pair
};

} // namespace

std::vector<PlanEntryText> find_pairs(
    const ProgramState& state,
    const torch::nn::Module& root) {
  return Search(state, root).plan();
}

} // namespace dtensor::detail
