// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/operand_layouts_impl.h>

#include <dtensor/comm/group/operator_errors_impl.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/ops/explicit_redistribution.h>
#include <dtensor/ops/install/kernels_impl.h>
#include <dtensor/ops/path/decide_impl.h>
#include <dtensor/ops/path/local_call_impl.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/ops/scopes/replicated_impl.h>
#include <dtensor/parallel/attention/context_attention_impl.h>
#include <dtensor/redistribute/plan.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/meta_impl.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace dtensor::detail {
namespace {

using c10::IValue;
using Args = c10::ArrayRef<IValue>;

// Number of remembered combinations of sizes and layouts for each call.
constexpr size_t kMostSeen = 8;
// Maximum number of later uses of a value that decide its route. A value may be
// redistributed again after each of many writes.
constexpr int64_t kMostLaterUses = 64;

// Returns the arguments of the call with tensors replaced by tensors without
// data.
torch::jit::Stack call_without_data(Args args) {
  torch::jit::Stack stack(args.begin(), args.end());
  map_tensors(stack.data(), stack.size(), [&](const at::Tensor& t, size_t) {
    return is_dtensor(t) ? without_data(spec_of(t)) : t;
  });
  for (auto& value : stack) {
    if (value.isDevice()) {
      value = c10::Device(c10::kMeta);
    }
  }
  return stack;
}

// Makes a functional call require gradients. A composite operator may then
// refuse layouts that it accepts without gradients.
void want_gradients(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  if (!is_functional(op.schema())) {
    return;
  }
  visit_tensors(stack, [&](const at::Tensor& t, size_t, int) {
    if (is_dtensor(t) && (t.is_floating_point() || t.is_complex())) {
      t.set_requires_grad(true);
    }
  });
}

// Returns true if the call runs, including with gradients. With `only_local`, a
// redistribution counts as failure.
bool runs(
    const c10::OperatorHandle& op,
    torch::jit::Stack stack,
    bool only_local) {
  const ErrorsDoNotCount uncounted;
  const c10::AutoGradMode with_gradients(true);
  want_gradients(op, stack);
  std::optional<ExplicitRedistributionContext> scope;
  if (only_local) {
    scope.emplace(ExplicitRedistributionOptions{.strict = true});
  }
  try {
    op.callBoxed(&stack);
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

// True if the call's parameter has a parallel style. The style then prepares
// the input itself.
bool has_style(const OpInfo& info, Args args) {
  const auto& role = info.traits.boundary;
  if (!role || !args[role->parameter].isTensor()) {
    return false;
  }
  const auto& t = args[role->parameter].toTensor();
  return t.defined() && is_dtensor(t) && meta_of(t).boundaries != nullptr;
}

// Returns the layout that the operator's rule requires for each argument;
// nothing if no rule decides.
std::optional<std::vector<SpecPtr>> by_rule(const OpInfo& info, Args args) {
  if (info.rule == nullptr || info.rule->runs_kernel(args) ||
      keeps_its_kernel(info.op) || has_style(info, args)) {
    return std::nullopt;
  }
  std::vector<SpecPtr> wanted(args.size());
  const auto stack = call_without_data(args);
  const auto decision = decide_uncached(info, stack);
  size_t index = 0;
  visit_tensors(stack, [&](const at::Tensor& t, size_t arg, int item) {
    const auto i = index++;
    if (is_dtensor(t) && item < 0 && i < decision->inputs.size()) {
      wanted[arg] = decision->inputs[i];
    }
  });
  return wanted;
}

// Returns the replicated layouts of all sharded DTensors.
std::vector<SpecPtr> replicated_layouts(Args args) {
  std::vector<SpecPtr> wanted(args.size());
  visit_tensors(args, [&](const at::Tensor& t, size_t arg, int item) {
    if (is_dtensor(t) && item < 0 && !spec_of(t)->is_replicated()) {
      wanted[arg] = fully_replicated_spec(*spec_of(t));
    }
  });
  return wanted;
}

bool any_of(const std::vector<SpecPtr>& wanted) {
  return std::ranges::any_of(
      wanted, [](const auto& spec) { return spec != nullptr; });
}

std::vector<SpecPtr>
wanted_by(const GraphNode& node, const c10::OperatorHandle& op, Args args) {
  std::vector<SpecPtr> as_they_are(args.size());
  if (all_replicated(args)) {
    return as_they_are;
  }
  const auto info = info_of(op);
  if (node.is_random || info->random) { // must be called once
    return info->rule == nullptr ? replicated_layouts(args) : as_they_are;
  }
  try {
    if (!op.schema().is_mutable()) { // a written argument keeps its layout
      if (auto wanted = by_rule(*info, args)) {
        return *std::move(wanted);
      }
    }
  } catch (const c10::Error&) {
    // The operator refuses these layouts. Below, it runs with replicated
    // arguments, or throws the error itself.
  }
  auto wanted = replicated_layouts(args);
  const bool views_are_written =
      !node.in_place_args.empty() && node.written.empty();
  const bool refused =
      any_of(wanted) && !runs(op, call_without_data(args), views_are_written);
  return refused ? wanted : as_they_are;
}

bool is_same(const std::vector<SpecPtr>& given, Args args) {
  size_t index = 0;
  bool same = true;
  visit_tensors(args, [&](const at::Tensor& t, size_t, int) {
    if (is_dtensor(t)) {
      same = same && index < given.size() && given[index] == spec_of(t);
      ++index;
    }
  });
  return same && index == given.size();
}

CallLayouts
look_at(const GraphNode& node, const c10::OperatorHandle& op, Args args) {
  CallLayouts layouts;
  visit_tensors(args, [&](const at::Tensor& t, size_t, int) {
    if (is_dtensor(t)) {
      layouts.given.push_back(spec_of(t));
    }
  });
  layouts.wanted = wanted_by(node, op, args);
  layouts.from.resize(args.size());
  for (size_t i = 0; i < args.size(); ++i) {
    if (layouts.wanted[i] != nullptr) {
      layouts.from[i] = spec_of(args[i].toTensor());
    }
  }
  layouts.changes_any = any_of(layouts.wanted);
  return layouts;
}

const InPlaceArg* own_arg(const GraphNode& node, size_t arg) {
  const auto found =
      std::ranges::find(node.in_place_args, arg, &InPlaceArg::arg);
  return found == node.in_place_args.end() ? nullptr : &*found;
}

} // namespace

OperandLayouts::OperandLayouts(const Graph& graph, GraphLayouts& seen)
    : graph_(graph),
      seen_(seen),
      made_(graph.num_slots) {
  seen_.resize(graph.nodes.size());
}

// Redistributes the value to `to` in the least modelled time, starting from
// the value itself or from an earlier redistribution of it.
at::Tensor
OperandLayouts::made_of(Slot slot, const at::Tensor& t, const SpecPtr& to) {
  const auto version = version_of(t);
  const bool recorded = c10::GradMode::is_enabled();
  auto& all = made_[slot];
  auto from = t;
  auto least = redistribute_cost(spec_of(t), to);
  for (const auto& made : all) {
    if (!made.from.is_same(t) || made.version != version ||
        made.recorded != recorded) {
      continue;
    }
    if (spec_of(made.value) == to) {
      return made.value;
    }
    const auto other = redistribute_cost(spec_of(made.value), to);
    if (other < least) {
      from = made.value;
      least = other;
    }
  }
  if (all.empty()) {
    made_in_[graph_.memory[slot]].push_back(slot);
  }
  all.push_back({t, version, recorded, redistribute_autograd(from, to)});
  return all.back().value;
}

// Returns the layouts that this call and later calls require for the value,
// this call's layout first.
std::vector<SpecPtr> OperandLayouts::later_layouts(
    size_t node,
    Slot slot,
    const SpecPtr& from,
    const SpecPtr& first) const {
  std::vector<SpecPtr> wanted = {first};
  const auto& uses = graph_.uses[slot];
  const auto first_use = std::ranges::lower_bound(uses, node, {}, &Use::node);
  const auto count = std::min(uses.end() - first_use, kMostLaterUses);
  for (auto use = first_use; use != first_use + count; ++use) {
    const auto& seen = seen_[use->node];
    const auto as_now = std::ranges::find_if(seen, [&](const auto& layouts) {
      return layouts.changes_any && layouts.from[use->arg] == from;
    });
    if (as_now == seen.end()) {
      continue;
    }
    const auto& to = as_now->wanted[use->arg];
    if (std::ranges::find(wanted, to) == wanted.end()) {
      wanted.push_back(to);
    }
  }
  return wanted;
}

at::Tensor OperandLayouts::brought(
    Slot slot,
    const at::Tensor& t,
    const SpecPtr& to,
    size_t node) {
  if (!made_[slot].empty()) {
    return made_of(slot, t, to);
  }
  const auto& from = spec_of(t);
  const bool both_ways = c10::GradMode::is_enabled() && t.requires_grad();
  at::Tensor value;
  for (const auto& layout :
       cheapest_route(from, later_layouts(node, slot, from, to), both_ways)) {
    value = made_of(slot, t, layout);
  }
  return value;
}

// Returns null if the call uses its operands unchanged.
const CallLayouts* OperandLayouts::layouts_of(
    const GraphNode& node,
    const c10::OperatorHandle& op,
    Args args) {
  auto& seen = seen_[static_cast<size_t>(&node - graph_.nodes.data())];
  const auto known = std::ranges::find_if(
      seen, [&](const auto& layouts) { return is_same(layouts.given, args); });
  if (known != seen.end() && !known->changes_any) {
    return nullptr;
  }
  if (is_computed_in_context(op.operator_name(), args)) {
    return nullptr; // the context's scope handles it
  }
  if (known != seen.end()) {
    std::rotate(seen.begin(), known, known + 1);
  } else {
    seen.insert(seen.begin(), look_at(node, op, args));
    seen.resize(std::min(seen.size(), kMostSeen));
  }
  return seen[0].changes_any ? &seen[0] : nullptr;
}

void OperandLayouts::bring_all(
    const GraphNode& node,
    const c10::OperatorHandle& op,
    torch::jit::Stack& stack,
    std::vector<IValue>& values) {
  const auto* layouts = layouts_of(node, op, stack);
  if (layouts == nullptr) {
    return;
  }
  const auto index = static_cast<size_t>(&node - graph_.nodes.data());
  for (size_t i = 0; i < stack.size(); ++i) {
    const auto* value = std::get_if<ValueOperand>(&node.args[i]);
    const auto& wanted = layouts->wanted[i];
    if (value == nullptr || wanted == nullptr) {
      continue;
    }
    const auto& t = stack[i].toTensor();
    const auto* own = own_arg(node, i);
    stack[i] = own == nullptr ? brought(value->slot, t, wanted, index)
                              : views_.brought(t, *own, wanted, values);
  }
}

void OperandLayouts::place(
    const GraphNode& node,
    const c10::OperatorHandle& op,
    torch::jit::Stack& stack,
    std::vector<IValue>& values) {
  bring_all(node, op, stack, values);
  views_.begin(node, stack);
}

void OperandLayouts::called(
    const GraphNode& node,
    const torch::jit::Stack& results) {
  views_.end(results);
  for (const auto& shared : node.written) {
    const auto made = made_in_.extract(shared->front());
    if (!made.empty()) {
      for (const auto slot : made.mapped()) {
        made_[slot].clear();
      }
    }
    views_.forget_unused();
  }
}

} // namespace dtensor::detail
