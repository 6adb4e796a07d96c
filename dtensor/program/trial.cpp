// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/find_pairs_impl.h>

#include <dtensor/ops/explicit_redistribution.h>
#include <dtensor/ops/path/local_call_impl.h>
#include <dtensor/tensor/dtensor.h>
#include <dtensor/tensor/meta_impl.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <numeric>
#include <set>
#include <utility>

namespace dtensor::detail {
namespace {

using c10::IValue;

// Returns the state on a mesh of `ranks` ranks, with constants on meta.
ProgramState state_without_data(const ProgramState& state, int64_t ranks) {
  std::vector<int64_t> all(static_cast<size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  ProgramState trial = state;
  trial.mesh = DeviceMesh(c10::kCPU, {ranks}, std::move(all));
  for (auto& node : trial.graph.nodes) {
    for (auto& arg : node.args) {
      if (auto* constant = std::get_if<IValue>(&arg);
          constant != nullptr && constant->isDevice()) {
        *constant = c10::Device(c10::kMeta);
      }
    }
  }
  return trial;
}

at::Tensor replicated_without_data(
    SizesRef sizes,
    at::ScalarType dtype,
    const DeviceMesh& mesh) {
  return replicate_tensor(
      at::empty(sizes, at::TensorOptions(dtype).device(c10::kMeta)), mesh);
}

bool can_call(const GraphNode& node, const std::vector<IValue>& values) {
  bool known = true;
  for (const auto& arg : node.args) {
    visit_slots(arg, [&](Slot slot) { known &= !values[slot].isNone(); });
  }
  return known;
}

bool takes_any(const GraphNode& node, const std::set<Slot>& slots) {
  bool takes = false;
  for (const auto& arg : node.args) {
    visit_slots(
        arg, [&](Slot slot) { takes = takes || slots.count(slot) > 0; });
  }
  return takes;
}

} // namespace

Trial::Trial(const ProgramState& state, int64_t ranks)
    : state_(state_without_data(state, ranks)) {
  const c10::NoGradGuard no_grad;
  Interpreter interpreter(state_);
  auto& values = interpreter.values();
  for (size_t i = 0; i < state_.graph.inputs.size(); ++i) {
    const auto& input = state_.graph.inputs[i];
    if (!input.is_tensor) {
      continue;
    }
    Sizes sizes;
    for (const auto& size : input.sizes) {
      sizes.push_back(size.value);
    }
    const auto& known = state_.inputs[i];
    values[input.slot] = known.defined()
        ? replicated_without_data(
              known.sizes(), known.scalar_type(), state_.mesh)
        : replicated_without_data(sizes, input.dtype, state_.mesh);
  }
  for (const auto& node : state_.graph.nodes) {
    if (!can_call(node, values)) {
      continue;
    }
    try {
      interpreter.call(node);
    } catch (const c10::Error&) {
      describe_results(node, values); // needs data, or has no rule
    }
  }
  values_ = std::move(values);
}

// Gives the results the sizes of the exported program. The results are
// replicated, because a program calls such an operator with replicated
// operands.
void Trial::describe_results(const GraphNode& node, std::vector<IValue>& values)
    const {
  visit_results(node, [&](Slot slot) {
    const auto meta = state_.graph.metas.find(slot);
    if (meta != state_.graph.metas.end()) {
      const auto& [dtype, sizes] = meta->second;
      values[slot] = replicated_without_data(sizes, dtype, state_.mesh);
    }
  });
}

bool Trial::is_known(Slot slot) const {
  return values_[slot].isTensor() && values_[slot].toTensor().defined();
}

SizesRef Trial::sizes_of(Slot slot) const {
  return values_[slot].toTensor().sizes();
}

bool Trial::is_same_layout(Slot slot, const Placement& a, const Placement& b)
    const {
  // Layouts with the same shards have equal specs.
  const auto& spec = spec_of(values_[slot].toTensor());
  return spec->with_placements({a}, "find_tp_plan") ==
      spec->with_placements({b}, "find_tp_plan");
}

// Returns false if one of the nodes cannot be called.
bool Trial::run_sharded(
    Interpreter& interpreter,
    const std::map<Slot, Placement>& sharded,
    const std::vector<size_t>& nodes,
    std::vector<Slot>& changed) const {
  auto& values = interpreter.values();
  const auto note = [&](Slot slot) {
    const auto& value = values[slot];
    if (value.isTensor() && value.toTensor().defined() &&
        !spec_of(value.toTensor())->placements()[0].is_replicate()) {
      changed.push_back(slot);
    }
  };
  std::set<Slot> sharded_values; // sharded, or computed from sharded values
  for (const auto& [slot, placement] : sharded) {
    const auto spec = spec_of(values[slot].toTensor());
    values[slot] =
        without_data(spec->with_placements({placement}, "find_tp_plan"));
    note(slot);
    sharded_values.insert(slot);
  }
  for (const auto index : nodes) {
    const auto& node = state_.graph.nodes[index];
    if (!can_call(node, values)) {
      return false;
    }
    if (!takes_any(node, sharded_values)) {
      continue; // its results are known
    }
    interpreter.call(node);
    visit_results(node, [&](Slot slot) {
      sharded_values.insert(slot);
      note(slot);
    });
  }
  return true;
}

std::optional<Placement> Trial::layout_after(
    const std::map<Slot, Placement>& sharded,
    const std::vector<size_t>& nodes,
    Slot wanted,
    std::vector<Slot>& changed) const {
  const c10::NoGradGuard no_grad;
  const ExplicitRedistributionContext only_local;
  Interpreter interpreter(state_);
  auto& values = interpreter.values();
  values = values_;
  changed.clear();
  try {
    if (!run_sharded(interpreter, sharded, nodes, changed)) {
      return std::nullopt;
    }
  } catch (const c10::Error&) {
    return std::nullopt; // would communicate, or cannot be sharded like this
  }
  return spec_of(values[wanted].toTensor())->placements()[0];
}

} // namespace dtensor::detail
