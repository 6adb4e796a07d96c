// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/propagate.h>

#include <dtensor/error.h>
#include <dtensor/layout/cost.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/propagate_impl.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace dtensor {
namespace {

constexpr double kImpossible = std::numeric_limits<double>::infinity();
constexpr double kLastResort = 1e300;

double local_bytes(const Spec& spec, int64_t without_mesh_dim) {
  auto bytes = static_cast<double>(spec.numel()) *
      static_cast<double>(c10::elementSize(spec.dtype()));
  for (int64_t m = 0; m < spec.mesh().ndim(); ++m) {
    if (m != without_mesh_dim &&
        spec.placements()[static_cast<size_t>(m)].is_sharded()) {
      bytes /= static_cast<double>(spec.mesh().size(m));
    }
  }
  return bytes;
}

// Returns false for a placement of a wrong rule, which Spec refuses if chosen.
bool shards_dim_of(SizesRef sizes, const Placement& placement) {
  return placement.is_sharded() && placement.dim() >= 0 &&
      placement.dim() < static_cast<int64_t>(sizes.size());
}

// Returns `placement` as a spec of these sizes stores it if the earlier mesh
// dimensions have the placements `before`: with the largest unit.
Placement as_stored(
    const OpCall& call,
    SizesRef sizes,
    PlacementsRef before,
    const Placement& placement) {
  if (placement.unit() == 1 || !shards_dim_of(sizes, placement)) {
    return placement;
  }
  Placements layout(before);
  layout.push_back(placement);
  return with_largest_units(sizes, call.mesh.shape(), std::move(layout)).back();
}

// Normalizes all placements of a strategy, so that equal shardings compare
// equal.
Strategy
as_stored(const OpCall& call, const MeshStrategy& before, Strategy strategy) {
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    auto& input = strategy.inputs[i];
    input = as_stored(call, call.inputs[i].sizes(), before.inputs[i], input);
  }
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    auto& output = strategy.outputs[i];
    output = as_stored(call, call.outputs[i].sizes, before.outputs[i], output);
  }
  return strategy;
}

// Returns true if sharding as `to` would leave ranks empty. Such a sharding is
// only chosen if nothing else is possible (as for an in-place operator whose
// self already has it).
bool too_small(const OpInput& input, int64_t mesh_dim, const Placement& to) {
  if (!shards_dim_of(input.sizes(), to) || input.placement(mesh_dim) == to) {
    return false;
  }
  const auto& mesh = input.spec->mesh();
  int64_t parts = mesh.size(mesh_dim);
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    if (m != mesh_dim && input.placement(m).is_sharded(to.dim())) {
      parts *= mesh.size(m);
    }
  }
  return input.sizes()[static_cast<size_t>(to.dim())] <=
      (parts - 1) * to.unit();
}

// Computes the cost of a strategy. Bytes are counted from the layouts with
// which the call came, regardless of the choices of earlier mesh dimensions;
// `planned` has those choices.
ScoredStrategy weigh(
    const OpCall& call,
    const OpCall& planned,
    Strategy strategy,
    int64_t mesh_dim) {
  ScoredStrategy option{std::move(strategy)};
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const auto& input = call.inputs[i];
    const auto& to = option.strategy.inputs[i];
    if (input.placement(mesh_dim) == to) {
      continue;
    }
    if (too_small(planned.inputs[i], mesh_dim, to)) {
      option.feasibility = Feasibility::kLastResort;
    }
    option.bytes += transition_cost(*input.spec, mesh_dim, to);
    ++option.changes;
  }
  if (option.bytes == kImpossible) {
    option.feasibility = Feasibility::kUnreachable;
  }
  return option;
}

// Returns the sort key of an option. Last resorts are not compared by bytes.
std::pair<double, int> cost_of(const ScoredStrategy& option) {
  const bool last = option.feasibility == Feasibility::kLastResort;
  return {last ? kLastResort : option.bytes, option.changes};
}

bool allowed(
    const OpCall& call,
    const Strategy& strategy,
    int64_t mesh_dim,
    const Constraints& constraints) {
  if (constraints.written_input < 0) {
    return true;
  }
  const auto written = static_cast<size_t>(constraints.written_input);
  const auto& now = call.inputs[written].placement(mesh_dim);
  return strategy.inputs[written] == now &&
      (strategy.outputs.empty() || strategy.outputs[0] == now);
}

bool differ_in_reduction(const Placement& a, const Placement& b) {
  return a.is_partial() && b.is_partial() && a != b;
}

bool mixes(const Placements& before, const Placement& next) {
  return std::any_of(before.begin(), before.end(), [&](const Placement& p) {
    return differ_in_reduction(p, next);
  });
}

// Returns true if a layout would have two reductions. Their result would depend
// on the order in which they are applied.
bool mixes_reductions(const MeshStrategy& chosen, const Strategy& strategy) {
  for (size_t i = 0; i < chosen.inputs.size(); ++i) {
    if (mixes(chosen.inputs[i], strategy.inputs[i])) {
      return true;
    }
  }
  for (size_t i = 0; i < chosen.outputs.size(); ++i) {
    if (mixes(chosen.outputs[i], strategy.outputs[i])) {
      return true;
    }
  }
  return false;
}

[[noreturn]] void refuse_in_place(
    const OpCall& call,
    int64_t mesh_dim,
    const Constraints& constraints) {
  const auto& self =
      *call.inputs[static_cast<size_t>(constraints.written_input)].spec;
  std::string operands;
  for (const auto& input : call.inputs) {
    operands += (operands.empty() ? "" : ", ") + to_string(*input.spec);
  }
  DTENSOR_THROW(
      "[{}] the in-place operator would change the layout of self, {}, on mesh "
      "dim {}; the operands are {}. Redistribute self first, or use the "
      "out-of-place operator.",
      call.name(),
      self,
      call.mesh.dim_label(mesh_dim),
      operands);
}

Choice choose(
    const OpCall& call,
    const OpCall& planned,
    const MeshStrategy& chosen,
    const OpRule& rule,
    int64_t mesh_dim,
    const Constraints& constraints) {
  Choice choice;
  auto& options = choice.options;
  for (auto& candidate : candidates(planned, rule, mesh_dim)) {
    candidate = as_stored(call, chosen, std::move(candidate));
    options.push_back(weigh(call, planned, std::move(candidate), mesh_dim));
    auto& option = options.back();
    if (!allowed(call, option.strategy, mesh_dim, constraints)) {
      option.feasibility = Feasibility::kChangesWritten;
    } else if (mixes_reductions(chosen, option.strategy)) {
      option.feasibility = Feasibility::kMixesReductions;
    }
    if (option.may_be_taken() &&
        (!choice.taken || cost_of(option) < cost_of(options[*choice.taken]))) {
      choice.taken = options.size() - 1;
    }
  }
  return choice;
}

void check_taken(
    const OpCall& call,
    const Choice& choice,
    int64_t mesh_dim,
    const Constraints& constraints) {
  if (!choice.taken && constraints.written_input >= 0) {
    refuse_in_place(call, mesh_dim, constraints);
  }
  DTENSOR_CHECK(
      choice.taken,
      "[{}] cannot redistribute the operands to layouts that the operator "
      "supports on mesh dim {}. Redistribute them to Replicate first.",
      call.name(),
      call.mesh.dim_label(mesh_dim));
}

// Updates a planned input for the next mesh dimensions: they see the placement
// `to`, and that they cannot keep another reduction beside it.
void plan(
    OpInput& input,
    int64_t mesh_dim,
    const Placement& to,
    const std::string& where) {
  if (input.placement(mesh_dim) == to) {
    return;
  }
  Placements layout(input.spec->placements());
  for (auto& p : layout) {
    p = differ_in_reduction(p, to) ? Replicate() : p;
  }
  layout[static_cast<size_t>(mesh_dim)] = to;
  input.spec = input.spec->with_placements(layout, where.c_str());
}

bool may_be_copied_back(const OpCall& call, const Constraints& constraints) {
  return constraints.written_input >= 0 &&
      !call.inputs[static_cast<size_t>(constraints.written_input)]
           .spec->has_partial();
}

MeshStrategy choose_per_dim(
    const OpCall& call,
    const OpRule& rule,
    const Constraints& constraints,
    std::vector<Choice>* choices) {
  MeshStrategy chosen;
  chosen.inputs.resize(call.inputs.size());
  chosen.outputs.resize(call.outputs.size());
  OpCall planned = call; // with the choices of earlier mesh dimensions
  for (int64_t m = 0; m < call.mesh.ndim(); ++m) {
    auto choice = choose(call, planned, chosen, rule, m, constraints);
    if (!choice.taken && may_be_copied_back(call, constraints)) {
      if (choices != nullptr) {
        choices->clear();
      }
      return choose_per_dim(call, rule, {}, choices);
    }
    if (choices != nullptr) {
      choices->push_back(choice);
    }
    check_taken(call, choice, m, constraints);
    const auto& strategy = choice.options[*choice.taken].strategy;
    for (size_t i = 0; i < call.inputs.size(); ++i) {
      chosen.inputs[i].push_back(strategy.inputs[i]);
      plan(planned.inputs[i], m, strategy.inputs[i], call.name());
    }
    for (size_t i = 0; i < call.outputs.size(); ++i) {
      chosen.outputs[i].push_back(strategy.outputs[i]);
    }
  }
  return chosen;
}

// Sets the argument OpTraits::size_arg to the local shape.
void give_size_arg(
    const OpCall& call,
    std::string_view name,
    Decision& decision) {
  DTENSOR_CHECK_VALUE(
      !decision.outputs.empty() && decision.outputs[0] != nullptr,
      "[{}] its rule sets the argument \"{}\" to the sizes of the first "
      "result, but the call has no result. Leave OpTraits::size_arg out.",
      call.name(),
      name);
  decision.args.emplace_back(
      call.arg_index(name), decision.outputs[0]->local_sizes().vec());
}

} // namespace

double
transition_cost(const Spec& spec, int64_t mesh_dim, const Placement& to) {
  const auto& from = spec.placements()[static_cast<size_t>(mesh_dim)];
  const auto n = spec.mesh().size(mesh_dim);
  if (from == to || n == 1) {
    return 0;
  }
  const double full = local_bytes(spec, mesh_dim);
  if (from.is_replicate()) {
    return 0;
  }
  if (from.is_partial()) {
    return to.is_partial() ? kImpossible
                           : wire_bytes(CollectiveKind::kAllReduce, n, full);
  }
  return to.is_sharded() && !to.is_strided_shard() && !from.is_strided_shard()
      ? wire_bytes(CollectiveKind::kAllToAll, n, full / static_cast<double>(n))
      : wire_bytes(CollectiveKind::kAllGather, n, full);
}

Decision propagate(
    const OpCall& call,
    const OpRule& rule,
    const Constraints& constraints,
    std::vector<Choice>* choices) {
  const auto chosen = rule.mesh_rule
      ? detail::mesh_candidate(call, rule)
      : choose_per_dim(call, rule, constraints, choices);
  Decision decision;
  const auto where = call.name();
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const auto& now = call.inputs[i].spec;
    auto wanted = now->with_placements(chosen.inputs[i], where.c_str());
    decision.redistributes |= wanted != now;
    decision.inputs.push_back(wanted == now ? nullptr : std::move(wanted));
  }
  for (size_t i = 0; i < call.outputs.size(); ++i) {
    const auto& out = call.outputs[i];
    decision.outputs.push_back(
        out.defined ? Spec::make(
                          call.mesh,
                          chosen.outputs[i],
                          out.sizes,
                          out.strides,
                          out.dtype,
                          where.c_str())
                    : nullptr);
    decision.offsets.push_back(out.offset);
  }
  if (!rule.traits.size_arg.empty()) {
    give_size_arg(call, rule.traits.size_arg, decision);
  }
  if (rule.localize) {
    rule.localize(call, decision);
  }
  return decision;
}

} // namespace dtensor
