// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/scopes/explicit_redistribution_impl.h>

#include <c10/util/Exception.h>
#include <dtensor/comm/observer.h>
#include <dtensor/comm/rank/rank_local_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/explicit_redistribution.h>
#include <dtensor/ops/path/in_backward_impl.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/ops/scopes/replicated_impl.h>
#include <dtensor/redistribute/plan.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/meta_impl.h>

#include <utility>

namespace dtensor {
namespace {

detail::RankLocal<ExplicitRedistributionContext*> innermost;

// Returns the innermost scope if it is enabled, else null.
ExplicitRedistributionContext* watching() {
  auto* const scope = innermost.get();
  return scope != nullptr && scope->options().enable ? scope : nullptr;
}

bool is_forbidden(
    const ExplicitRedistributionContext& scope,
    const SpecPtr& from,
    const SpecPtr& to) {
  return from->placements() != to->placements() &&
      (scope.options().strict || plan(from, to)->collectives() > 0);
}

// Returns `argument "mat2" from f32[6, 4] on (tp=2): S(0) to R`.
std::string
move_text(const std::string& argument, const Spec& from, const Spec& to) {
  return "argument \"" + argument + "\" from " + to_string(from) + " to " +
      to_string(PlacementsRef(to.placements()));
}

// Names the current module, and says if a backward pass runs.
std::string cause_text() {
  const auto module = detail::ModuleScope::current();
  return (module.empty() ? std::string()
                         : " in module \"" + std::string(module) + "\"") +
      (detail::in_backward() ? " in a backward pass" : "");
}

void report_moves(
    ExplicitRedistributionContext& scope,
    const std::string& op,
    const std::string& moves) {
  scope.report(
      op,
      "Implicit redistribution" + cause_text() + " of " + moves +
          ". Redistribute before the call, or allow it there by an "
          "ExplicitRedistributionContext with enable = false.");
}

std::string
name_of_argument(const c10::FunctionSchema& schema, size_t arg, int item) {
  return schema.arguments()[arg].name() +
      (item < 0 ? "" : "[" + std::to_string(item) + "]");
}

// Lists the redistributions of a call that the scope forbids; empty if there
// are none.
std::string forbidden_moves(
    const ExplicitRedistributionContext& scope,
    const detail::OpInfo& info,
    const Decision& decision,
    c10::ArrayRef<c10::IValue> args) {
  std::string moves;
  const auto like = detail::first_spec(args);
  size_t index = 0;
  detail::visit_tensors(args, [&](const at::Tensor& t, size_t arg, int item) {
    const auto& to = decision.inputs[index++];
    if (to == nullptr) {
      return;
    }
    const auto from =
        is_dtensor(t) ? detail::spec_of(t) : detail::replicated_spec(*like, t);
    if (is_forbidden(scope, from, to)) {
      const auto name = name_of_argument(info.op.schema(), arg, item);
      moves += (moves.empty() ? "" : ", ") + move_text(name, *from, *to);
    }
  });
  return moves;
}

} // namespace

ExplicitRedistributionContext::ExplicitRedistributionContext(
    const ExplicitRedistributionOptions& options)
    : options_(options),
      outer_(std::exchange(innermost.get(), this)) {}

ExplicitRedistributionContext::~ExplicitRedistributionContext() {
  innermost.get() = outer_;
}

void ExplicitRedistributionContext::report(
    const std::string& where,
    const std::string& text) {
  DTENSOR_CHECK(
      options_.mode != ExplicitRedistributionOptions::Mode::kRaise,
      "[{}] {}",
      where,
      text);
  if (warned_.insert(where + text).second) {
    TORCH_WARN(detail::format_text("[{}] {}", where, text));
  }
}

namespace detail {

void before_redistributing(
    const OpInfo& info,
    const Decision& decision,
    c10::ArrayRef<c10::IValue> args) {
  if (auto* const scope = watching()) {
    const auto moves = forbidden_moves(*scope, info, decision, args);
    if (!moves.empty()) {
      report_moves(*scope, info.name, moves);
    }
  }
  if (is_replicated_fallback(decision)) {
    count_missing_rule(info, decision, args);
  }
}

void before_redistributing(
    std::string_view op,
    const char* argument,
    const SpecPtr& from,
    PlacementsRef to) {
  auto* const scope = watching();
  if (scope == nullptr) {
    return;
  }
  const auto target = from->with_placements(to);
  if (is_forbidden(*scope, from, target)) {
    report_moves(*scope, std::string(op), move_text(argument, *from, *target));
  }
}

} // namespace detail
} // namespace dtensor
