// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/propagate.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/combinations_impl.h>
#include <dtensor/ops/propagate_impl.h>

#include <utility>

namespace dtensor {
namespace {

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

bool may_be_copied_back(const OpCall& call, const Constraints& constraints) {
  return constraints.written_input >= 0 &&
      !call.inputs[static_cast<size_t>(constraints.written_input)]
           .spec->has_partial();
}

[[noreturn]] void
refuse(const OpCall& call, int64_t mesh_dim, const Constraints& constraints) {
  if (constraints.written_input >= 0) {
    refuse_in_place(call, mesh_dim, constraints);
  }
  DTENSOR_THROW(
      "[{}] cannot redistribute the operands to layouts that the operator "
      "supports on mesh dim {}. Redistribute them to Replicate first.",
      call.name(),
      call.mesh.dim_label(mesh_dim));
}

MeshStrategy choose(
    const OpCall& call,
    const OpRule& rule,
    const Constraints& constraints,
    std::vector<Choice>* choices) {
  int64_t failed = 0;
  auto chosen = detail::choose_layouts(call, rule, constraints, failed);
  if (!chosen && may_be_copied_back(call, constraints)) {
    return choose(call, rule, {}, choices);
  }
  if (choices != nullptr && chosen) {
    *choices = detail::list_choices(call, rule, constraints, *chosen);
  } else if (choices != nullptr) {
    choices->push_back(
        detail::list_infeasible(call, rule, constraints, failed));
  }
  if (!chosen) {
    refuse(call, failed, constraints);
  }
  return std::move(chosen->layouts);
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

Decision propagate(
    const OpCall& call,
    const OpRule& rule,
    const Constraints& constraints,
    std::vector<Choice>* choices) {
  const auto chosen = rule.mesh_rule ? detail::mesh_candidate(call, rule)
                                     : choose(call, rule, constraints, choices);
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
