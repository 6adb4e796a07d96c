// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/on_missing_rule.h>

#include <c10/util/Exception.h>
#include <dtensor/comm/group/owner_impl.h>
#include <dtensor/comm/rank/rank_local_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/ops/scopes/explicit_redistribution_impl.h>
#include <dtensor/ops/scopes/replicated_impl.h>
#include <dtensor/ops/variants/variants_impl.h>
#include <dtensor/redistribute/plan.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/meta_impl.h>

#include <algorithm>
#include <mutex>
#include <set>

namespace dtensor {
namespace {

detail::RankLocal<OnMissingRule*> innermost_fallback;

// Returns true if the operands of an operator without a rule are gathered.
bool gathers(const detail::OpInfo& info) {
  return info.traits.gathers || innermost_fallback.get() != nullptr;
}

void warn_once(const std::string& op) {
  static std::mutex mutex;
  static std::set<std::string> warned;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!warned.insert(op).second) {
      return;
    }
  }
  TORCH_WARN(detail::format_text(
      "[{}] has no sharding rule: every rank gathers the operands and computes "
      "the full result. Register a rule with register_sharding().",
      op));
}

void count_move(MissingRuleCost& cost, const SpecPtr& from, const SpecPtr& to) {
  const auto steps = plan(from, to);
  cost.collectives += steps->collectives();
  cost.wire_bytes += steps->wire_bytes;
}

void count_call(const detail::OpInfo& info, const MissingRuleCost& cost) {
  auto* const scope = innermost_fallback.get();
  if (scope != nullptr && !info.traits.gathers) {
    scope->add(info.name, cost);
    warn_once(info.name);
  }
}

// Returns true if the operator writes an argument or returns a view of an
// argument.
bool shares_an_argument(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  return std::ranges::any_of(
      arguments, [](const auto& a) { return a.alias_info() != nullptr; });
}

// Returns true if the DTensors are on one mesh, have no attached style, and are
// not all replicated.
bool can_be_replicated(
    const detail::OpInfo& info,
    c10::ArrayRef<c10::IValue> args) {
  const auto like = detail::first_spec(args);
  bool fits = like != nullptr;
  bool sharded = false;
  detail::visit_tensors(args, [&](const at::Tensor& t, size_t, int) {
    if (fits && is_dtensor(t)) {
      const auto& meta = detail::meta_of(t);
      detail::check_owned_by_this_rank(info.name, *meta.spec);
      fits = meta.boundaries == nullptr && meta.spec->mesh() == like->mesh();
      sharded |= !meta.spec->is_replicated();
    }
  });
  return fits && sharded;
}

} // namespace

OnMissingRule::OnMissingRule(const Placement& operands)
    : outer_(innermost_fallback.get()) {
  DTENSOR_CHECK_VALUE(
      operands.is_replicate(),
      "[on_missing_rule] operands of an operator without a rule cannot become "
      "{}: its result on shards is unknown. Pass Replicate().",
      operands);
  innermost_fallback.get() = this;
}

OnMissingRule::~OnMissingRule() {
  innermost_fallback.get() = outer_;
}

void OnMissingRule::add(const std::string& op, const MissingRuleCost& cost) {
  auto& mine = costs_[op];
  mine.calls += cost.calls;
  mine.collectives += cost.collectives;
  mine.wire_bytes += cost.wire_bytes;
  if (outer_ != nullptr) {
    outer_->add(op, cost);
  }
}

namespace detail {

std::shared_ptr<Decision> decide_replicated_fallback(
    const OpInfo& info,
    const OpCall& call) {
  return !gathers(info) || info.random || shares_an_argument(call.schema)
      ? nullptr
      : make_replicated_decision(call);
}

std::shared_ptr<Decision> make_replicated_decision(const OpCall& call) {
  auto decision = std::make_shared<Decision>();
  for (const auto& input : call.inputs) {
    decision->inputs.push_back(
        input.spec->is_replicated() ? nullptr
                                    : fully_replicated_spec(*input.spec));
  }
  decision->redistributes = true;
  decision->shapes_from_results = true;
  return decision;
}

void count_missing_rule(
    const OpInfo& info,
    const Decision& decision,
    c10::ArrayRef<c10::IValue> args) {
  MissingRuleCost cost{.calls = 1};
  size_t index = 0;
  visit_tensors(args, [&](const at::Tensor& t, size_t, int) {
    const auto& to = decision.inputs[index++];
    if (to != nullptr) {
      count_move(cost, spec_of(t), to);
    }
  });
  count_call(info, cost);
}

bool uses_replicated_fallback(
    const OpInfo& info,
    c10::ArrayRef<c10::IValue> args) {
  return gathers(info) && info.rule == nullptr && !draws(info, args) &&
      can_be_replicated(info, args);
}

void replicate_on_missing_rule(const OpInfo& info, torch::jit::Stack* stack) {
  if (!uses_replicated_fallback(info, last_args(*stack, info.num_args)) ||
      !is_functional(info.op.schema())) {
    return;
  }
  MissingRuleCost cost{.calls = 1};
  const auto& arguments = info.op.schema().arguments();
  auto* const args = mutable_args(stack, info.num_args);
  for (size_t i = 0; i < info.num_args; ++i) {
    map_tensors(args + i, 1, [&](const at::Tensor& t, size_t) {
      if (!is_dtensor(t)) {
        return t;
      }
      const auto to = fully_replicated_spec(*spec_of(t));
      before_redistributing(
          info.name, arguments[i].name().c_str(), spec_of(t), to->placements());
      count_move(cost, spec_of(t), to);
      return redistribute_autograd(t, to);
    });
  }
  count_call(info, cost);
}

bool write_on_missing_rule(const OpInfo& info, torch::jit::Stack* stack) {
  if (!info.in_place || info.inplace_view || info.num_returns != 1 ||
      !uses_replicated_fallback(info, last_args(*stack, info.num_args))) {
    return false;
  }
  const auto functional = functional_of_in_place(info.op);
  return functional && run_in_place_variant(info, *functional, stack);
}

} // namespace detail
} // namespace dtensor
