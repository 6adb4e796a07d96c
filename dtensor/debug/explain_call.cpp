// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/debug/explain_call_impl.h>

#include <c10/util/StringUtil.h>
#include <dtensor/layout/mesh_state_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/install/kernels_impl.h>
#include <dtensor/ops/path/decide_impl.h>
#include <dtensor/ops/path/dispatch_impl.h>
#include <dtensor/ops/path/in_backward_impl.h>
#include <dtensor/ops/path/local_call_impl.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/ops/path/with_boundary_impl.h>
#include <dtensor/ops/scopes/replicated_impl.h>
#include <dtensor/parallel/attention/context_attention_impl.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/dispatch_keys_impl.h>

#include <algorithm>
#include <utility>

namespace dtensor::detail {
namespace {

DecidedBy without_rule(const OpInfo& info, c10::ArrayRef<c10::IValue> args) {
  if (uses_replicated_fallback(info, args)) {
    return DecidedBy::kReplicatedFallback;
  }
  const bool decomposes =
      info.is_out || (is_composite(info.op) && !runs_replicated(info, args));
  return decomposes ? DecidedBy::kOperators : DecidedBy::kReplicatedOperands;
}

// Returns the mechanism of a call. Follows the choice of kernels in
// ops/install/kernels.cpp.
DecidedBy decided_by(const OpInfo& info, c10::ArrayRef<c10::IValue> args) {
  if (keeps_its_kernel(info.op)) {
    return DecidedBy::kOperators;
  }
  if (info.rule == nullptr) {
    return without_rule(info, args);
  }
  return info.rule->runs_kernel(args) ? DecidedBy::kKernel
      : info.rule->mesh_rule          ? DecidedBy::kViewRule
                                      : DecidedBy::kRule;
}

// Returns the boundary that the call will apply: a parallel style attaches it
// to a parameter.
const Boundary* boundary_of_call(
    const OpInfo& info,
    c10::ArrayRef<c10::IValue> args) {
  const auto& role = info.traits.boundary;
  if (!role || !args[role->parameter].isTensor()) {
    return nullptr;
  }
  const auto* boundary =
      boundary_of(args[role->parameter].toTensor(), role->kind);
  return boundary == applied_boundary ? nullptr : boundary;
}

// Returns the layout of a plain input under the style. If the module does not
// specify the global size, all shards are assumed to have equal sizes.
SpecPtr spec_of_plain_input(const Boundary& boundary, const at::Tensor& t) {
  const auto& layouts = boundary.layouts().input;
  auto sizes = t.sizes().vec();
  if (layouts.plain.is_sharded() && t.dim() > 0) {
    const auto dim = (layouts.plain.dim() + t.dim()) % t.dim();
    const bool known = dim == (layouts.features_dim + t.dim()) % t.dim() &&
        layouts.features > 0;
    auto& size = sizes[static_cast<size_t>(dim)];
    size = known ? layouts.features : size * boundary.where().size();
  }
  const auto& where = boundary.where();
  return Spec::make(
      where.mesh, where.alone(layouts.plain), sizes, t.scalar_type());
}

SpecPtr spec_of_styled(const Boundary& boundary, const at::Tensor& t) {
  const auto given =
      is_dtensor(t) ? spec_of(t) : spec_of_plain_input(boundary, t);
  return given->with_placements(boundary.where().with(
      given->placements(), boundary.layouts().input.desired));
}

bool becomes_replicated(const OpInfo& info, const at::Tensor& t) {
  return !is_dtensor(t) && t.numel() != 1 && t.layout() == at::kStrided &&
      (info.traits.accepts_plain_source || in_implicit_replication());
}

// Returns the arguments at the time of the decision, after scopes and styles
// have converted tensors.
torch::jit::Stack as_decided(
    const OpInfo& info,
    c10::ArrayRef<c10::IValue> args,
    ExplainedCall& call) {
  torch::jit::Stack stack(args.begin(), args.end());
  if (const auto* boundary = boundary_of_call(info, args)) {
    auto& input = stack[info.traits.boundary->input];
    const auto spec = spec_of_styled(*boundary, input.toTensor());
    call.module = boundary->module_name();
    call.note = c10::str(
        "its style brings the input to ", to_string(spec->placements()));
    input = without_data(spec);
  }
  const auto like = first_spec(args);
  map_tensors(stack.data(), stack.size(), [&](const at::Tensor& t, size_t) {
    return becomes_replicated(info, t) ? without_data(replicated_spec(*like, t))
                                       : t;
  });
  return stack;
}

ExplainedOperand operand_of(
    const OpInfo& info,
    const Spec& like,
    const at::Tensor& t,
    size_t arg,
    int item) {
  ExplainedOperand operand;
  operand.name = info.op.schema().arguments()[arg].name();
  if (item >= 0) {
    operand.name += c10::str("[", item, "]");
  }
  operand.is_plain = !is_dtensor(t);
  operand.spec = operand.is_plain ? replicated_spec(like, t) : spec_of(t);
  return operand;
}

void add_way(ExplainedOperand& operand, const SpecPtr& to) {
  if (to == nullptr) {
    return;
  }
  operand.becomes = to;
  const auto way = plan(operand.spec, to);
  operand.steps = way->steps;
  operand.wire_bytes = way->wire_bytes;
}

void say(ExplainedCall& call, std::string_view what) {
  call.note += call.note.empty() ? "" : "; ";
  call.note += what;
}

// Adds notes on execution that the decision does not contain.
void say_how_it_runs(
    const OpInfo& info,
    const Decision& decision,
    c10::ArrayRef<c10::IValue> args,
    ExplainedCall& call) {
  if (info.is_region && wants_gradients(args)) {
    say(call,
        call.module.empty() && uses_native_autograd(info, decision, args)
            ? "LibTorch's own formula, on DTensors"
            : "a region: LibTorch's autograd records the local operator");
    return;
  }
  if (calls_kernel(info, decision)) {
    say(call, "a kernel of the library computes the local shards");
  }
  if (call.module.empty() && is_local_only(info, decision) &&
      find_fast_op(info.op.operator_name()) != nullptr) {
    say(call, "a faster kernel runs from the next call on");
  }
}

void add_choices(
    const OpInfo& info,
    const DeviceMesh& mesh,
    const std::vector<Choice>& choices,
    ExplainedCall& call) {
  const bool writes = info.in_place && !info.inplace_view;
  const auto written = writes ? info.op.schema().arguments()[0].name() : "";
  for (const Choice& choice : choices) {
    const auto m = static_cast<size_t>(choice.mesh_dim);
    call.mesh_dims.push_back(
        explain_choice(choice, dim_name(mesh, m), written));
  }
}

void add_decision(
    const OpInfo& info,
    const Decision& decision,
    c10::ArrayRef<c10::IValue> args,
    ExplainedCall& call) {
  if (decision.shapes_from_results) {
    call.by = is_replicated_fallback(decision) ? DecidedBy::kReplicatedFallback
                                               : DecidedBy::kReplicatedOperands;
  }
  for (size_t i = 0; i < call.operands.size(); ++i) {
    add_way(call.operands[i], decision.inputs[i]);
  }
  call.results = decision.outputs;
  say_how_it_runs(info, decision, args, call);
}

void explain_into(
    const OpInfo& info,
    c10::ArrayRef<c10::IValue> args,
    ExplainedCall& call) {
  const auto stack = as_decided(info, args, call);
  const auto like = first_spec(stack);
  visit_tensors(stack, [&](const at::Tensor& t, size_t arg, int item) {
    call.operands.push_back(operand_of(info, *like, t, arg, item));
  });
  if (is_computed_in_context(info.op.operator_name(), stack)) {
    call.by = DecidedBy::kKernel;
    say(call, "in a context_parallel scope, which keeps the sequence sharded");
    return;
  }
  call.by = decided_by(info, stack);
  if (call.by == DecidedBy::kOperators || call.by == DecidedBy::kKernel) {
    return;
  }
  std::vector<Choice> choices;
  try {
    const auto decision = decide_uncached(info, stack, &choices);
    add_decision(info, *decision, args, call);
  } catch (const c10::Error& e) {
    call.by = DecidedBy::kUnsupported;
    call.note = e.what_without_backtrace();
  }
  add_choices(info, like->mesh(), choices, call);
}

} // namespace

ExplainedCall explain_call(
    const OpInfo& info,
    c10::ArrayRef<c10::IValue> args) {
  const at::RecordFunctionGuard observers_off(false);
  ExplainedCall call;
  call.name = info.name;
  call.mesh = to_string(first_spec(args)->mesh());
  call.backward = in_backward();
  try {
    explain_into(info, args, call);
  } catch (const c10::Error& e) {
    call.by = DecidedBy::kUnsupported;
    call.note = e.what_without_backtrace();
  }
  return call;
}

namespace {

// Reasons why a mesh dimension takes one strategy and not another: the
// comparison order of propagate(), in words.

// Criteria for comparing strategies, in order of precedence.
enum class Criterion : uint8_t {
  kByStanding,
  kByTime,
  kByChanges,
  kBySharding,
  kByOrder
};

Criterion how_beats(const ScoredStrategy& better, const ScoredStrategy& worse) {
  if (better.feasibility != worse.feasibility) {
    return Criterion::kByStanding;
  }
  return better.microseconds != worse.microseconds ? Criterion::kByTime
      : better.changes != worse.changes            ? Criterion::kByChanges
      : better.not_sharded != worse.not_sharded    ? Criterion::kBySharding
                                                   : Criterion::kByOrder;
}

std::string why_impossible(
    Feasibility feasibility,
    const std::string& written) {
  switch (feasibility) {
    case Feasibility::kUnreachable:
      return "cannot convert one reduction to another";
    case Feasibility::kChangesWritten:
      return "would change " + written + ", which is written";
    case Feasibility::kMixesReductions:
      return "a layout would have two reductions";
    default: // kShardsReplicated
      return "all inputs are replicated, and stay so";
  }
}

std::string why_not(const ScoredStrategy& option, const ScoredStrategy& taken) {
  switch (how_beats(taken, option)) {
    case Criterion::kByStanding:
      return "shards fewer elements than ranks";
    case Criterion::kByTime:
      return "takes longer";
    case Criterion::kByChanges:
      return "equal time, changes more inputs";
    case Criterion::kBySharding:
      return "equal time, result not sharded";
    default:
      return "equal cost, listed later";
  }
}

// Compares with the closest alternative.
std::string why_taken(const Choice& choice, const std::string& written) {
  const auto& taken = choice.options[*choice.taken];
  auto closest = Criterion::kByStanding;
  size_t others = 0;
  for (const auto& option : choice.options) {
    if (&option != &taken && option.may_be_taken()) {
      closest = std::max(closest, how_beats(taken, option));
      ++others;
    }
  }
  if (others == 0) {
    return choice.options.size() == 1 ? "everything replicated: always possible"
        : written.empty() && taken.changes == 0
        ? "the inputs already have these layouts"
        : written.empty() ? "the only one possible"
                          : "the only one in which " + written +
            ", which is written, keeps its layout";
  }
  if (closest == Criterion::kByOrder) {
    return "equal cost, listed first";
  }
  if (taken.changes == 0) {
    return "the inputs already have these layouts";
  }
  switch (closest) {
    case Criterion::kBySharding:
      return "equal time, result sharded";
    case Criterion::kByChanges:
      return "least time, then fewest changed inputs";
    case Criterion::kByTime:
      return "least time";
    default:
      return "the only one that gives every rank elements";
  }
}

} // namespace

ExplainedMeshDim explain_choice(
    const Choice& choice,
    const std::string& mesh_dim,
    const std::string& written) {
  ExplainedMeshDim explained{mesh_dim, {}};
  for (size_t i = 0; i < choice.options.size(); ++i) {
    const auto& option = choice.options[i];
    const bool is_taken = choice.taken == i;
    auto why = is_taken         ? why_taken(choice, written)
        : option.may_be_taken() ? why_not(option, choice.options[*choice.taken])
                                : why_impossible(option.feasibility, written);
    explained.strategies.push_back(
        {option.strategy,
         option.microseconds,
         option.changes,
         is_taken,
         std::move(why)});
  }
  return explained;
}

} // namespace dtensor::detail
