// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/operand_layouts_impl.h>

#include <dtensor/ops/decide_impl.h>
#include <dtensor/ops/kernels_impl.h>
#include <dtensor/ops/local_call_impl.h>
#include <dtensor/ops/stack_impl.h>
#include <dtensor/parallel/context_attention_impl.h>
#include <dtensor/program/routes_impl.h>
#include <dtensor/redistribute/plan.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/version_impl.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

namespace dtensor::detail {
namespace {

using c10::IValue;
using Args = c10::ArrayRef<IValue>;

SpecPtr whole(const SpecPtr& spec) {
  return spec->with_placements(
      Placements(spec->placements().size(), Replicate()));
}

// The same call on tensors without data.
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

bool runs(const c10::OperatorHandle& op, torch::jit::Stack stack) {
  const c10::NoGradGuard no_grad;
  try {
    op.callBoxed(&stack);
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

// A style sees to the input of a call with its parameter.
bool has_style(const OpInfo& info, Args args) {
  const auto& role = info.traits.boundary;
  if (!role || !args[role->parameter].isTensor()) {
    return false;
  }
  const auto& t = args[role->parameter].toTensor();
  return t.defined() && is_dtensor(t) && meta_of(t).boundaries != nullptr;
}

// Where the rule brings each argument; empty if none decides.
std::vector<SpecPtr> by_rule(const OpInfo& info, Args args) {
  std::vector<SpecPtr> wanted(args.size());
  if (info.rule == nullptr || info.rule->kernel || keeps_its_kernel(info.op) ||
      has_style(info, args)) {
    return wanted;
  }
  const auto stack = call_without_data(args);
  const auto decision = decide_anew(info, stack);
  size_t index = 0;
  visit_tensors(stack, [&](const at::Tensor& t, size_t arg, int item) {
    const auto i = index++;
    if (is_dtensor(t) && item < 0 && i < decision->inputs.size()) {
      wanted[arg] = decision->inputs[i];
    }
  });
  return wanted;
}

// All DTensors whole, if that is what it takes to run.
std::vector<SpecPtr> whole_if_refused(
    const c10::OperatorHandle& op,
    Args args) {
  std::vector<SpecPtr> wanted(args.size());
  bool cut = false;
  torch::jit::Stack as_whole(args.begin(), args.end());
  visit_tensors(args, [&](const at::Tensor& t, size_t arg, int item) {
    if (is_dtensor(t) && item < 0 && !spec_of(t)->is_replicated()) {
      cut = true;
      wanted[arg] = whole(spec_of(t));
      as_whole[arg] = without_data(wanted[arg]);
    }
  });
  if (!cut || runs(op, call_without_data(args)) ||
      !runs(op, call_without_data(as_whole))) {
    return std::vector<SpecPtr>(args.size());
  }
  return wanted;
}

std::vector<SpecPtr>
wanted_by(const GraphNode& node, const c10::OperatorHandle& op, Args args) {
  std::vector<SpecPtr> wanted(args.size());
  const auto info = info_of(op);
  if (op.schema().is_mutable() || node.is_random || info->random) {
    return wanted; // it must see the very tensor, and be called once
  }
  try {
    wanted = by_rule(*info, args);
  } catch (const c10::Error&) {
    // the operator refuses it, which it says itself unless it takes it whole
  }
  const bool moves = std::any_of(
      wanted.begin(), wanted.end(), [](const auto& s) { return s != nullptr; });
  return moves ? wanted : whole_if_refused(op, args);
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
  layouts.changes_any = std::any_of(
      layouts.wanted.begin(), layouts.wanted.end(), [](const auto& spec) {
        return spec != nullptr;
      });
  return layouts;
}

} // namespace

OperandLayouts::OperandLayouts(const Graph& graph, GraphLayouts& seen)
    : graph_(graph),
      seen_(seen),
      made_(graph.num_slots) {
  seen_.resize(graph.nodes.size());
}

// From where it takes the least communication: the value, or what it was
// brought to before.
at::Tensor
OperandLayouts::made_of(Slot slot, const at::Tensor& t, const SpecPtr& to) {
  const auto version = version_of(t);
  const bool recorded = c10::GradMode::is_enabled();
  auto& all = made_[slot];
  auto from = t;
  auto bytes = plan(spec_of(t), to)->wire_bytes;
  for (const auto& made : all) {
    if (!made.from.is_same(t) || made.version != version ||
        made.recorded != recorded) {
      continue;
    }
    if (spec_of(made.value) == to) {
      return made.value;
    }
    const auto other = plan(spec_of(made.value), to)->wire_bytes;
    if (other < bytes) {
      from = made.value;
      bytes = other;
    }
  }
  all.push_back({t, version, recorded, redistribute_autograd(from, to)});
  return all.back().value;
}

// What this call and those after it want of the value, the first one first.
std::vector<SpecPtr> OperandLayouts::wanted_from(
    size_t node,
    Slot slot,
    const SpecPtr& from,
    const SpecPtr& first) const {
  std::vector<SpecPtr> wanted = {first};
  for (const auto& use : graph_.uses[slot]) {
    const auto& seen = seen_[use.node];
    if (use.node < node || !seen.changes_any || seen.from[use.arg] != from) {
      continue;
    }
    const auto& to = seen.wanted[use.arg];
    if (std::find(wanted.begin(), wanted.end(), to) == wanted.end()) {
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
       cheapest_route(from, wanted_from(node, slot, from, to), both_ways)) {
    value = made_of(slot, t, layout);
  }
  return value;
}

void OperandLayouts::place(
    const GraphNode& node,
    const c10::OperatorHandle& op,
    torch::jit::Stack& stack) {
  const auto index = static_cast<size_t>(&node - graph_.nodes.data());
  auto& seen = seen_[index];
  const bool known = is_same(seen.given, stack);
  if (known && !seen.changes_any) {
    return;
  }
  if (is_computed_in_context(op.operator_name(), stack)) {
    seen = {};
    return; // the scope of a context sees to it
  }
  if (!known) {
    seen = look_at(node, op, stack);
  }
  for (size_t i = 0; i < stack.size(); ++i) {
    const auto* value = std::get_if<ValueOperand>(&node.args[i]);
    if (value != nullptr && seen.wanted[i] != nullptr) {
      stack[i] =
          brought(value->slot, stack[i].toTensor(), seen.wanted[i], index);
    }
  }
}

} // namespace dtensor::detail
