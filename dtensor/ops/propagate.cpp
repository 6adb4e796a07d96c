// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/propagate.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/combinations_impl.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/ops/propagate_impl.h>

#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <string_view>
#include <utility>

namespace dtensor::detail {
namespace {

// --- shapes of results -------------------------------------------------------

// The operator runs on meta tensors of the global shapes.

// Returns a tensor of the operand's global shape that has no data. A wrapped
// number stays on the CPU, because LibTorch passes wrapped numbers to kernels
// of every device. PyTorch's Meta kernels written in Python accept wrapped
// numbers on the CPU only.
at::Tensor without_data(const at::Tensor& operand, const Spec& spec) {
  const bool wrapped = operand.unsafeGetTensorImpl()->is_wrapped_number();
  auto result = at::empty_strided(
      spec.sizes(),
      spec.strides(),
      at::TensorOptions()
          .dtype(spec.dtype())
          .device(wrapped ? c10::kCPU : c10::kMeta));
  if (wrapped) {
    // Wrapped numbers do not determine the dtype of the result.
    result.zero_();
    result.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return result;
}

OutputMeta output_meta(const at::Tensor& t) {
  if (!t.defined()) {
    return {{}, {}, at::kFloat, false};
  }
  return {
      Sizes(t.sizes().begin(), t.sizes().end()),
      Sizes(t.strides().begin(), t.strides().end()),
      t.scalar_type(),
      true,
      t.storage_offset()};
}

std::vector<OutputMeta> collect(
    const torch::jit::Stack& results,
    size_t num_returns) {
  std::vector<OutputMeta> outputs;
  for (const auto& value : last_args(results, num_returns)) {
    if (value.isTensor()) {
      outputs.push_back(output_meta(value.toTensor()));
    } else if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) {
        outputs.push_back(output_meta(t));
      }
    }
  }
  return outputs;
}

// Replaces device arguments, because the call would run on a real device
// otherwise.
void replace_devices(torch::jit::Stack& stack) {
  for (auto& value : stack) {
    if (value.isDevice()) {
      value = c10::Device(c10::kMeta);
    }
  }
}

// Throws for an argument that asks for a sparse result.
void check_requested_layout(const OpInfo& info, const OpCall& call) {
  const auto index = call.schema.argumentIndexWithName("layout");
  if (!index || call.args[static_cast<size_t>(*index)].isNone()) {
    return;
  }
  const auto layout = call.args[static_cast<size_t>(*index)].toLayout();
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      layout == at::kStrided,
      "[{}] the result would have layout {}, which DTensors do not support. "
      "Leave out the argument \"layout\".",
      info.name,
      layout);
}

// Returns true if there is no Meta kernel for a call. A kernel written in
// Python raises Python's NotImplementedError, whose text begins with this name.
// An operator that refuses a dtype may raise NotImplementedError, too.
bool is_missing_meta_kernel(const std::exception& error) {
  if (const auto* refused =
          dynamic_cast<const c10::NotImplementedError*>(&error)) {
    const std::string_view text = refused->what_without_backtrace();
    const auto has = [&](const char* words) {
      return text.find(words) != text.npos;
    };
    const bool refuses_dtype =
        has("does not support") || has("not implemented for '");
    return !refuses_dtype || has("Meta") || has("meta");
  }
  return dynamic_cast<const c10::Error*>(&error) == nullptr &&
      std::string_view(error.what()).starts_with("NotImplementedError");
}

} // namespace

std::optional<std::vector<OutputMeta>> infer_outputs(
    const OpInfo& info,
    const OpCall& call) {
  check_requested_layout(info, call);
  const WithoutModes without_modes;
  if (info.rule != nullptr && info.rule->meta) {
    auto outputs = info.rule->meta(call);
    if (!outputs.empty()) {
      return outputs;
    } // the rule's meta function supports only some calls
  }
  torch::jit::Stack stack(call.args.begin(), call.args.end());
  map_tensors(stack.data(), stack.size(), [&](const at::Tensor& t, size_t i) {
    return without_data(t, *call.inputs[i].spec);
  });
  replace_devices(stack);
  try {
    info.op.callBoxed(&stack);
  } catch (const std::exception& error) {
    if (!is_missing_meta_kernel(error)) {
      throw;
    }
    return std::nullopt;
  }
  return collect(stack, info.num_returns);
}

} // namespace dtensor::detail

namespace dtensor {
namespace {

// --- candidates --------------------------------------------------------------

// Returns the inputs' placements on this mesh dimension that shard in another
// way than a Shard without unit. The tensor dimension is replaced by 0.
Placements other_shardings(const OpCall& call, int64_t mesh_dim) {
  Placements shardings;
  for (const auto& input : call.inputs) {
    const auto sharding = input.placement(mesh_dim).with_dim(0);
    if (sharding.is_sharded() && !sharding.is_chunk() &&
        std::ranges::find(shardings, sharding) == shardings.end()) {
      shardings.push_back(sharding);
    }
  }
  return shardings;
}

// Replaces every Shard by `sharding` on the same tensor dimension.
Strategy with_sharding(Strategy strategy, const Placement& sharding) {
  const auto change = [&](Placements& placements) {
    for (auto& p : placements) {
      if (p.is_shard()) {
        p = sharding.with_dim(p.dim());
      }
    }
  };
  change(strategy.outputs);
  change(strategy.inputs);
  return strategy;
}

// Returns true if `sharding` may replace the Shards of the strategy. A rule
// that lists other sharding placements itself defines how they combine.
bool may_replace_shards(const Strategy& s) {
  const auto count = [&](bool (Placement::*is)() const) {
    const auto found = [is](const Placement& p) { return (p.*is)(); };
    return std::ranges::count_if(s.inputs, found) +
        std::ranges::count_if(s.outputs, found);
  };
  const auto chunks = count(&Placement::is_chunk);
  return chunks > 0 && chunks == count(&Placement::is_sharded);
}

// Returns true for a strategy of a rule that expects a vector, if the operand
// has one element and no dimensions.
bool shards_0d_input(const OpCall& call, const Strategy& s) {
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    if (call.inputs[i].dim() == 0 && s.inputs[i].is_sharded()) {
      return true;
    }
  }
  return false;
}

Strategy replicated(const OpCall& call) {
  Strategy s;
  s.outputs.resize(call.outputs.size(), Replicate());
  s.inputs.resize(call.inputs.size(), Replicate());
  return s;
}

// Checks the number of layouts of a Strategy or MeshStrategy, because programs
// write rules, too.
template <class AnyStrategy>
void check_fits(const OpCall& call, const AnyStrategy& strategy) {
  DTENSOR_CHECK_VALUE(
      strategy.inputs.size() == call.inputs.size() &&
          strategy.outputs.size() == call.outputs.size(),
      "[{}] its rule gives layouts for {} and {}, but the call has {} and {}. "
      "Return one layout for each tensor, including each tensor of a list.",
      call.name(),
      detail::pluralize(strategy.inputs.size(), "input"),
      detail::pluralize(strategy.outputs.size(), "output"),
      call.inputs.size(),
      call.outputs.size());
}

} // namespace

Strategies
candidates(const OpCall& call, const OpRule& rule, int64_t mesh_dim) {
  Strategies all;
  if (rule.dim_rule) {
    all = rule.dim_rule(call, mesh_dim);
  }
  for (const auto& s : all) {
    check_fits(call, s);
  }
  std::erase_if(
      all, [&](const Strategy& s) { return shards_0d_input(call, s); });
  const auto plain = all.size();
  for (const auto& sharding : other_shardings(call, mesh_dim)) {
    for (size_t i = 0; i < plain && (rule.strided || sharding.is_shard());
         ++i) {
      if (may_replace_shards(all[i])) {
        all.push_back(with_sharding(all[i], sharding));
      }
    }
  }
  auto all_replicated = replicated(call);
  if (std::ranges::find(all, all_replicated) == all.end()) {
    all.push_back(std::move(all_replicated));
  }
  return all;
}

// --- the decision ------------------------------------------------------------

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

// Returns the choice of a rule for the whole mesh.
MeshStrategy mesh_candidate(const OpCall& call, const OpRule& rule) {
  auto chosen = rule.mesh_rule(call);
  check_fits(call, chosen);
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

Decision propagate(
    const OpCall& call,
    const OpRule& rule,
    const Constraints& constraints,
    std::vector<Choice>* choices) {
  const auto chosen = rule.mesh_rule ? mesh_candidate(call, rule)
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
