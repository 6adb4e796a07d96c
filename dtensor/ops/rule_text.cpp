// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/rule_text.h>

#include <c10/util/Exception.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/rules/pointwise_impl.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace dtensor {
namespace {

// Returns all layouts of an input of `ndim` dimensions to try.
std::vector<Placement> layouts_of(int64_t ndim) {
  std::vector<Placement> layouts;
  for (int64_t d = 0; d < ndim; ++d) {
    layouts.push_back(Shard(d));
  }
  for (const auto op : detail::all_ops()) {
    layouts.push_back(Partial(op));
  }
  return layouts;
}

// Returns the call with the inputs in the given layouts.
OpCall with_layouts(const OpCall& call, const Placements& layouts) {
  auto changed = call;
  for (size_t i = 0; i < layouts.size(); ++i) {
    auto placements = detail::replicated_placements(call.mesh);
    placements[0] = layouts[i];
    changed.inputs[i].spec = call.inputs[i].spec->with_placements(placements);
  }
  return changed;
}

void add(Strategies& all, Strategy strategy) {
  if (std::ranges::find(all, strategy) == all.end()) {
    all.push_back(std::move(strategy));
  }
}

void add_all(Strategies& all, const OpCall& call, const OpRule& rule) {
  try {
    for (auto& strategy : rule.dim_rule(call, 0)) {
      add(all, std::move(strategy));
    }
  } catch (const c10::Error&) {
    // The rule rejects this layout.
  }
}

// Collects the strategies of a rule. A rule may list different strategies
// depending on the layouts of inputs. Therefore every layout is tried on each
// input, and partial layouts on all inputs together.
Strategies strategies_of(const OpCall& call, const OpRule& rule) {
  const Placements all_replicated(call.inputs.size(), Replicate());
  Strategies all;
  add_all(all, with_layouts(call, all_replicated), rule);
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    for (const auto& layout : layouts_of(call.inputs[i].dim())) {
      auto layouts = all_replicated;
      layouts[i] = layout;
      add_all(all, with_layouts(call, layouts), rule);
    }
  }
  for (const auto op : detail::all_ops()) {
    const Placements partial(call.inputs.size(), Partial(op));
    add_all(all, with_layouts(call, partial), rule);
  }
  const Strategy replicated_strategy{
      Placements(call.outputs.size(), Replicate()), all_replicated};
  std::erase(all, replicated_strategy);
  return all;
}

// Returns the layouts that a view keeps from its input to its output.
Strategies kept_layouts(const OpCall& call, const OpRule& rule) {
  Strategies all;
  for (const auto& layout : layouts_of(call.inputs[0].dim())) {
    Placements layouts(call.inputs.size(), Replicate());
    layouts[0] = layout;
    try {
      const auto chosen = rule.mesh_rule(with_layouts(call, layouts));
      if (chosen.inputs[0][0] == layout) {
        add(all, {{chosen.outputs[0][0]}, {layout}});
      }
    } catch (const c10::Error&) {
      // The rule rejects this layout.
    }
  }
  return all;
}

// Returns the reduction of all partial placements; empty if there are none or
// they differ.
std::optional<ReduceOp> common_reduction(const Strategy& strategy) {
  std::optional<ReduceOp> found;
  for (const auto* placements : {&strategy.inputs, &strategy.outputs}) {
    for (const auto& p : *placements) {
      if (p.is_partial() && found && *found != p.reduce_op()) {
        return std::nullopt;
      }
      found = p.is_partial() ? std::optional(p.reduce_op()) : found;
    }
  }
  return found;
}

bool takes_partial(const Strategy& strategy) {
  return std::ranges::any_of(
      strategy.inputs, [](const Placement& p) { return p.is_partial(); });
}

std::string text_of(
    const Strategy& strategy,
    std::string (*text_of_one)(const Placement&)) {
  const auto text = [&](const Placements& placements) {
    std::string all;
    for (const auto& p : placements) {
      all += (all.empty() ? "" : " ") + text_of_one(p);
    }
    return all.empty() ? "nothing" : all;
  };
  return text(strategy.inputs) + " -> " + text(strategy.outputs);
}

// Returns "P R -> P" for any reduction.
std::string without_reduction(const Strategy& strategy) {
  return text_of(strategy, [](const Placement& p) {
    return p.is_partial() ? std::string("P") : to_string(p);
  });
}

// Lines that differ only in their reduction, merged into one line with all
// reductions.
class PartialTexts {
 public:
  void add(const Strategy& strategy, ReduceOp reduction) {
    const auto text = without_reduction(strategy);
    const auto same = std::ranges::find_if(
        lines_, [&](const auto& line) { return line.first == text; });
    if (same == lines_.end()) {
      lines_.push_back({text, {reduction}});
    } else {
      same->second.push_back(reduction);
    }
  }
  void append_to(std::vector<std::string>& texts) const {
    for (const auto& [text, reductions] : lines_) {
      texts.push_back(text + " of " + names(reductions));
    }
  }

 private:
  static std::string names(const std::vector<ReduceOp>& reductions) {
    if (reductions == detail::all_ops()) {
      return "any";
    }
    std::string text;
    for (const auto op : reductions) {
      text += (text.empty() ? "" : ", ") + std::string(to_string(op));
    }
    return text;
  }

  std::vector<std::pair<std::string, std::vector<ReduceOp>>> lines_;
};

void say_if(bool is_true, const char* what, std::vector<std::string>& notes) {
  if (is_true) {
    notes.emplace_back(what);
  }
}

std::string role_text(const BoundaryRole& role) {
  switch (role.kind) {
    case BoundaryKind::kLinear:
      return "styled as a linear layer";
    case BoundaryKind::kEmbedding:
      return "styled as an embedding";
    case BoundaryKind::kNorm:
      return "styled as a norm";
  }
  return "";
}

} // namespace

std::string to_string(const Strategy& strategy) {
  return text_of(strategy, [](const Placement& p) { return to_string(p); });
}

Strategies all_strategies(const OpCall& call, const OpRule& rule) {
  return rule.dim_rule ? strategies_of(call, rule)
      : rule.mesh_rule ? kept_layouts(call, rule)
                       : Strategies{};
}

std::vector<std::string> texts_of(const Strategies& strategies) {
  std::vector<std::string> texts;
  PartialTexts partial;
  for (const auto& strategy : strategies) {
    const auto reduction = common_reduction(strategy);
    if (reduction && takes_partial(strategy)) {
      partial.add(strategy, *reduction);
    } else {
      texts.push_back(to_string(strategy));
    }
  }
  partial.append_to(texts);
  return texts;
}

std::vector<std::string> notes_of(const OpTraits& traits) {
  std::vector<std::string> notes;
  say_if(!traits.size_arg.empty(), "local size", notes);
  say_if(traits.product, "product", notes);
  say_if(traits.formula, "LibTorch's gradient formula", notes);
  say_if(traits.gradient_makes_plain, "plain tensors in the gradient", notes);
  say_if(traits.gradient_from_sizes_only, "gradient of sizes", notes);
  say_if(traits.accepts_plain_source, "takes plain tensors", notes);
  say_if(traits.writes_expanded, "writes expanded tensors", notes);
  say_if(traits.keeps_boundary, "carries a style", notes);
  say_if(traits.boundary_follows_rows, "carries a style of rows", notes);
  say_if(traits.adds_bias, "adds a styled bias", notes);
  say_if(traits.result_order_varies, "orders its result", notes);
  say_if(traits.gathers, "gathers its operands", notes);
  say_if(
      !traits.module_created_arg.empty(), "modules create an argument", notes);
  if (traits.boundary) {
    notes.push_back(role_text(*traits.boundary));
  }
  return notes;
}

std::vector<std::string> notes_of(const OpRule& rule) {
  auto notes = notes_of(rule.traits);
  say_if(rule.kernel && !rule.kernel_takes, "kernel", notes);
  say_if(rule.kernel && rule.kernel_takes, "kernel of some calls", notes);
  say_if(rule.local_kernel != nullptr, "local kernel", notes);
  say_if(rule.localize != nullptr, "local arguments", notes);
  say_if(rule.meta != nullptr, "own shapes", notes);
  say_if(rule.region, "region", notes);
  say_if(rule.uses_scalar_values, "depends on values", notes);
  say_if(rule.used_in_backward, "differs in gradients", notes);
  say_if(!rule.strided, "no strided shards", notes);
  return notes;
}

} // namespace dtensor
