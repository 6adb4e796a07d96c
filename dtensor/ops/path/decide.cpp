// SPDX-License-Identifier: BSD-3-Clause
// Decisions of calls: from this thread's cache, or made now.
#include <dtensor/ops/path/decide_impl.h>

#include <ATen/ops/ones.h>
#include <dtensor/comm/group/owner_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/path/call_key_impl.h>
#include <dtensor/ops/path/in_backward_impl.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/ops/propagate_impl.h>
#include <dtensor/ops/scopes/plain_operand_impl.h>
#include <dtensor/ops/scopes/replicated_impl.h>
#include <dtensor/redistribute/moves_impl.h>
#include <dtensor/tensor/layout_steps_impl.h>
#include <dtensor/tensor/memory_order_impl.h>
#include <dtensor/tensor/meta_impl.h>

#include <vector>

namespace dtensor::detail {
namespace {

// Caches per thread instead of per rank. A decision follows from its key, so
// every rank would make the same decision. A thread-local access also takes
// fewer steps in each call than access to a rank's state.
thread_local std::vector<std::unique_ptr<DecisionCache>> caches;
thread_local std::vector<std::unique_ptr<RecentDecisions>> recent;

/// Copy of `recent`'s address and size that every call reads. It is
/// constant-initialized, so a read needs no check for construction, and the TLS
/// model makes the address available without a function call.
struct Known {
  const std::unique_ptr<RecentDecisions>* first = nullptr;
  size_t count = 0;
};
[[gnu::tls_model("initial-exec")]] constinit thread_local Known known_recent{};

// Returns element `slot`, which is made at its first use.
template <class T>
T& at_slot(std::vector<std::unique_ptr<T>>& all, size_t slot) {
  if (slot >= all.size()) {
    all.resize(slot + 1);
  }
  auto& mine = all[slot];
  if (mine == nullptr) {
    mine = std::make_unique<T>();
  }
  return *mine;
}

DecisionCache::Pins specs_in(c10::ArrayRef<c10::IValue> args) {
  DecisionCache::Pins specs;
  visit_tensors(args, [&](const at::Tensor& t, size_t, int) {
    if (is_dtensor(t)) {
      specs.push_back(spec_of(t));
    }
  });
  return specs;
}

// Returns the spec of a plain operand. A plain tensor of one element counts as
// equal on all ranks; any other plain tensor may differ between ranks.
SpecPtr spec_of_plain(
    const OpInfo& info,
    const at::Tensor& plain,
    size_t arg,
    const Spec& beside) {
  const bool decides_gradient = info.used_in_backward && in_backward();
  // The gradient through a write to a view receives the gradient of the view,
  // which a formula may have created from sizes alone.
  const bool writes_gradient = info.in_place && in_view_backward();
  if (!decides_gradient && !writes_gradient) {
    check_plain_operand(info.op.schema(), plain, arg, beside);
  }
  return replicated_spec(beside, plain);
}

std::vector<OpInput> collect_inputs(
    const OpInfo& info,
    c10::ArrayRef<c10::IValue> args,
    const Spec& first) {
  std::vector<OpInput> inputs;
  visit_tensors(args, [&](const at::Tensor& t, size_t arg, int item) {
    OpInput input;
    input.is_plain = !is_dtensor(t);
    input.spec =
        input.is_plain ? spec_of_plain(info, t, arg, first) : spec_of(t);
    input.arg = static_cast<int>(arg);
    input.item = item;
    check_owned_by_this_rank(info.name, *input.spec);
    check_same_mesh(info.name, first, *input.spec);
    inputs.push_back(std::move(input));
  });
  return inputs;
}

[[noreturn]] void refuse(const OpInfo& info, const OpCall& call) {
  const auto* scope = current_decomposition();
  if (scope != nullptr && scope->name() != info.name) {
    scope->refuse(info.name, "has none");
  }
  std::string layouts;
  for (const auto& input : call.inputs) {
    layouts += (layouts.empty() ? "" : ", ") + to_string(*input.spec);
  }
  DTENSOR_THROW_NOT_IMPLEMENTED(
      "[{}] no sharding rule; the operands are {}{}",
      info.name,
      layouts,
      info.random
          ? ". It draws random numbers, which every rank would draw "
            "differently: use one of the random operators that have a rule."
          : ". Redistribute them to Replicate first, or call it on the local "
            "tensors.");
}

// Returns the layouts of the gradients. The gradient of a replicated input is a
// sum over ranks if the ranks compute with different values.
std::vector<SpecPtr> gradient_layouts(
    const OpCall& call,
    const Decision& decision) {
  const auto mesh_dims = static_cast<size_t>(call.mesh.ndim());
  std::vector<Placements> layouts;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    layouts.emplace_back(decision.layout_of(call, i).placements());
  }
  for (size_t m = 0; m < mesh_dims; ++m) {
    bool differs = false;
    for (const auto& layout : layouts) {
      differs |= !layout[m].is_replicate();
    }
    for (const auto& out : decision.outputs) {
      differs |= out != nullptr && !out->placements()[m].is_replicate();
    }
    for (auto& layout : layouts) {
      if (layout[m].is_partial()) {
        layout[m] = Replicate();
      } else if (layout[m].is_replicate() && differs) {
        layout[m] = Partial(ReduceOp::kSum);
      }
    }
  }
  std::vector<SpecPtr> specs;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const auto& input = decision.layout_of(call, i);
    specs.push_back(
        i < decision.gradient_dim_orders.size()
            ? input.with_tensor(
                  layouts[i],
                  input.sizes(),
                  dense_strides(input.sizes(), decision.gradient_dim_orders[i]))
            : gradient_spec(input, layouts[i]));
  }
  return specs;
}

// Returns the decision for operands that are not all replicated, in an
// on_missing_rule() scope; null otherwise.
std::shared_ptr<const Decision> decide_to_replicate(
    const OpInfo& info,
    const OpCall& call) {
  const auto decision = all_replicated(call.args)
      ? nullptr
      : decide_replicated_fallback(info, call);
  if (decision != nullptr && info.is_region) {
    decision->grads = gradient_layouts(call, *decision);
  }
  return decision;
}

// Returns the decision for an operator without a rule. On replicated tensors,
// every rank runs the plain operator, if it is deterministic.
std::shared_ptr<const Decision> decide_replicated(
    const OpInfo& info,
    const OpCall& call) {
  if (auto decision = decide_to_replicate(info, call)) {
    return decision;
  }
  if (info.random || !all_replicated(call.args)) {
    refuse(info, call);
  }
  auto decision = std::make_shared<Decision>();
  decision->inputs.resize(call.inputs.size());
  decision->shapes_from_results = true;
  return decision;
}

// Returns the decision for an operator without a meta kernel. Gathers the
// operands if values decide the shapes of the results (an index by a mask).
std::shared_ptr<const Decision> decide_without_meta(
    const OpInfo& info,
    const OpCall& call) {
  if (all_replicated(call.args)) {
    return decide_replicated(info, call);
  }
  if (auto decision = decide_to_replicate(info, call)) {
    return decision;
  }
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      info.op.hasTag(at::Tag::dynamic_output_shape) && !info.random &&
          is_functional(call.schema),
      "[{}] LibTorch cannot infer the shapes of the results (no meta kernel). "
      "Redistribute the operands to Replicate first.",
      info.name);
  const auto decision = make_replicated_decision(call);
  if (info.is_region) {
    decision->grads = gradient_layouts(call, *decision);
  }
  return decision;
}

bool all_shards_are_equal(const OpCall& call, const Decision& decision) {
  bool equal = true;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    equal &= has_equal_shards(decision.layout_of(call, i));
  }
  for (const auto& output : decision.outputs) {
    equal &= output == nullptr || has_equal_shards(*output);
  }
  return equal;
}

// Throws if LibTorch would resize self.
void check_fits_in_place(const OpInfo& info, const OpCall& call) {
  const auto& self = *call.inputs[0].spec;
  DTENSOR_CHECK(
      call.outputs.empty() || SizesRef(call.outputs[0].sizes) == self.sizes(),
      "[{}] self, {}, cannot take a result of shape {} in place. Use the "
      "out-of-place operator.",
      info.name,
      self,
      at::IntArrayRef(call.outputs[0].sizes));
}

// Throws if LibTorch has no kernel for this call. Only a call can show that, so
// the operator is called on tensors of ones. (Their dimensions have two
// elements, because a call on one element might return before it reaches a
// kernel.)
void check_has_kernel(const OpInfo& info, const OpCall& call) {
  const auto dtype = call.inputs[0].spec->dtype();
  if (dtype != at::kUInt16 && dtype != at::kUInt32 && dtype != at::kUInt64) {
    return; // LibTorch has few kernels for these three dtypes alone
  }
  torch::jit::Stack stack(call.args.begin(), call.args.end());
  map_tensors(stack.data(), stack.size(), [&](const at::Tensor&, size_t i) {
    const auto& input = call.inputs[i];
    const Sizes twos(static_cast<size_t>(input.dim()), 2);
    return at::ones(twos, at::TensorOptions().dtype(input.spec->dtype()));
  });
  try {
    info.op.callBoxed(&stack);
  } catch (const c10::NotImplementedError&) {
    DTENSOR_THROW_NOT_IMPLEMENTED(
        "[{}] LibTorch has no kernel for {}. Convert it to another dtype.",
        info.name,
        *call.inputs[0].spec);
  } catch (const c10::Error&) {
    // The operator rejects the ones, which are not the values of the call.
  }
}

} // namespace

void check_not_expanded(const std::string& name, const Spec& self) {
  DTENSOR_CHECK(
      self.numel() == 0 || !is_expanded(self.sizes(), self.strides()),
      "[{}] self, {}, is expanded, so elements share memory. Write to a "
      "clone() of it.",
      name,
      self);
}

DecisionCache& decision_cache(size_t slot) {
  return at_slot(caches, slot);
}

RecentDecisions& recent_decisions(size_t slot) {
  const Known known = known_recent;
  if (C10_LIKELY(slot < known.count && known.first[slot] != nullptr)) {
    return *known.first[slot];
  }
  RecentDecisions& mine = at_slot(recent, slot);
  known_recent = {recent.data(), recent.size()};
  return mine;
}

DecisionCounts decision_counts() {
  DecisionCounts counts;
  for (const auto& cache : caches) {
    if (cache != nullptr) {
      counts.made += cache->made();
      counts.kept += cache->size();
    }
  }
  return counts;
}

std::shared_ptr<const Decision> decide_uncached(
    const OpInfo& info,
    c10::ArrayRef<c10::IValue> args,
    std::vector<Choice>* choices) {
  const auto first = first_spec(args);
  TORCH_INTERNAL_ASSERT(first != nullptr, info.name, " without a DTensor");
  OpCall call(
      info.op.schema(),
      args,
      first->mesh(),
      collect_inputs(info, args, *first));
  call.in_backward = in_backward();
  call.in_view_backward = in_view_backward();
  if (info.rule == nullptr) {
    return decide_replicated(info, call);
  }
  check_has_kernel(info, call);
  const bool writes = info.in_place && !info.inplace_view;
  if (writes && !info.traits.writes_expanded) {
    check_not_expanded(info.name, *call.inputs[0].spec);
  }
  auto outputs = infer_outputs(info, call);
  if (!outputs) {
    return decide_without_meta(info, call);
  }
  call.outputs = std::move(*outputs);
  Constraints constraints;
  if (writes) {
    constraints.written_input = 0;
    check_fits_in_place(info, call);
  }
  auto decision = std::make_shared<Decision>(
      propagate(call, *info.rule, constraints, choices));
  check_plain_is_not_split(info, call, *decision);
  if (info.is_region) {
    decision->grads = gradient_layouts(call, *decision);
    decision->has_equal_shards = all_shards_are_equal(call, *decision);
  }
  return decision;
}

std::shared_ptr<const Decision>
decide(const OpInfo& info, c10::ArrayRef<c10::IValue> args, KeyWords key) {
  auto& cache = decision_cache(info.slot);
  if (const auto* found = cache.find(key)) {
    return *found;
  }
  auto decision = decide_uncached(info, args);
  if (is_replicated_fallback(*decision)) {
    return decision; // an error outside of the scope
  }
  return cache.insert(key, std::move(decision), specs_in(args));
}

std::shared_ptr<const Decision> decide(
    const OpInfo& info,
    const torch::jit::Stack& stack) {
  const auto args = last_args(stack, info.num_args);
  const auto key = key_of(info, args);
  return key.usable() ? decide(info, args, key.words())
                      : decide_uncached(info, args); // decided again each time
}

} // namespace dtensor::detail
