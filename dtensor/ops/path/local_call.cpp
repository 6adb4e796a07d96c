// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/path/local_call_impl.h>

#include <ATen/ops/empty_strided.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/boundary/boundaries_impl.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/ops/scopes/replicated_impl.h>
#include <dtensor/random/sample_impl.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/memory_order_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>

#include <algorithm>
#include <utility>

namespace dtensor::detail {
namespace {

// Pushes results as the schema declares them: one list, or single tensors.
void push_results(
    const OpInfo& info,
    std::vector<at::Tensor> results,
    torch::jit::Stack* stack) {
  const auto& returns = info.op.schema().returns();
  if (returns[0].type()->kind() == c10::TypeKind::ListType) {
    TORCH_INTERNAL_ASSERT(returns.size() == 1, info.name, ": several lists");
    stack->emplace_back(std::move(results));
    return;
  }
  for (auto& result : results) {
    stack->emplace_back(std::move(result));
  }
}

// Returns a meta tensor with this rank's local shape in the layout `spec`.
at::Tensor local_without_data(const Spec& spec) {
  return at::empty_strided(
      spec.local_sizes(),
      dense_strides(spec.local_sizes(), spec.strides()),
      at::TensorOptions().dtype(spec.dtype()).device(c10::kMeta));
}

// Pushes meta results of an operator for which LibTorch has no kernel on meta
// tensors. The decision gives the shapes.
void results_without_data(
    const OpInfo& info,
    const Decision& decision,
    torch::jit::Stack* stack) {
  std::vector<at::Tensor> results;
  for (const auto& spec : decision.outputs) {
    results.push_back(spec ? local_without_data(*spec) : at::Tensor());
  }
  push_results(info, std::move(results), stack);
}

bool rewrites(const OpInfo& info, const Decision& decision) {
  return info.rule == nullptr || calls_kernel(info, decision) ||
      info.rule->kernel || info.inplace_view || info.is_out;
}

// Returns true if the order of the local result may differ from that of the
// global result. LibTorch orders a result by its operands, and skips expanded
// dimensions. A redistributed operand is not expanded any more.
bool may_reorder(const OpInfo& info, const Decision& decision) {
  const auto was_expanded = [](const SpecPtr& redistributed) {
    return redistributed != nullptr &&
        std::ranges::count(redistributed->strides(), 0) > 0;
  };
  return decision.redistributes && !info.is_view && !info.in_place &&
      !decision.shapes_from_results && decision.outputs.size() == 1 &&
      decision.outputs[0] != nullptr &&
      std::ranges::any_of(decision.inputs, was_expanded);
}

const SpecPtr&
output_spec(const OpInfo& info, const Decision& decision, size_t index) {
  DTENSOR_CHECK_VALUE(
      index < decision.outputs.size() && decision.outputs[index] != nullptr,
      "[{}] its rule gives no layout for result {}. If you "
      "registered a local kernel, return the results that its MetaRule "
      "describes; otherwise, please report this.",
      info.name,
      index);
  return decision.outputs[index];
}

} // namespace

bool calls_kernel(const OpInfo& info, const Decision& decision) {
  return info.rule != nullptr && info.rule->local_kernel &&
      !decision.is_plain_call && !decision.shapes_from_results;
}

bool is_local_only(const OpInfo& info, const Decision& decision) {
  const auto is_null = [](const SpecPtr& spec) { return spec == nullptr; };
  return !rewrites(info, decision) && !decision.redistributes &&
      !decision.shapes_from_results && decision.args.empty() &&
      std::ranges::all_of(decision.inputs, is_null) &&
      !decision.outputs.empty() &&
      std::ranges::all_of(decision.outputs, [](const SpecPtr& spec) {
        return spec == nullptr || spec->mesh().contains_this_rank();
      });
}

at::Tensor without_data(const SpecPtr& spec) {
  return wrap(local_without_data(*spec), spec);
}

SpecPtr any_spec(
    const Decision& decision,
    const torch::jit::Stack& stack,
    size_t num_args) {
  if (!decision.outputs.empty() && decision.outputs[0] != nullptr) {
    return decision.outputs[0];
  }
  return first_spec(last_args(stack, num_args));
}

at::Tensor placed_plain(
    const at::Tensor& plain,
    const SpecPtr& wanted,
    const Spec& mesh_like) {
  auto placed =
      redistribute_local(plain, replicated_spec(mesh_like, plain), wanted);
  if (plain.unsafeGetTensorImpl()->is_wrapped_number()) {
    placed.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return placed;
}

void call_local(
    const OpInfo& info,
    const Decision& decision,
    torch::jit::Stack* stack) {
  const auto base = stack->size() - info.num_args;
  for (const auto& [arg, value] : decision.args) {
    (*stack)[base + arg] = value;
  }
  const bool no_data = info.num_args > 0 && (*stack)[base].isTensor() &&
      (*stack)[base].toTensor().defined() &&
      (*stack)[base].toTensor().is_meta();
  try {
    if (calls_kernel(info, decision)) {
      info.rule->local_kernel(info.op, decision, stack);
    } else {
      info.op.callBoxed(stack);
    }
    if (info.traits.result_order_varies ||
        (may_reorder(info, decision) && stack->back().isTensor())) {
      stack->back() = in_memory_order(
          std::move(stack->back()).toTensor(),
          output_spec(info, decision, 0)->strides());
    }
  } catch (const c10::NotImplementedError&) {
    if (!no_data || decision.shapes_from_results) {
      throw;
    }
    stack->resize(base);
    results_without_data(info, decision, stack);
  }
}

SpecPtr result_spec(
    const OpInfo& info,
    const Decision& decision,
    const Spec& any,
    const at::Tensor& local,
    size_t index) {
  if (!decision.shapes_from_results) {
    return output_spec(info, decision, index);
  }
  if (!has_dense_format(local)) {
    refuse_format(info.name, "returns", local);
  }
  return replicated_spec(any, local);
}

void outside_mesh(
    const OpInfo& info,
    const Decision& decision,
    const SpecPtr& any,
    at::TensorList inputs,
    torch::jit::Stack* stack) {
  DTENSOR_CHECK(
      !decision.shapes_from_results && info.num_returns > 0,
      "[{}] has no value on rank {}, which is outside the mesh {}. Call it on "
      "ranks of the mesh only.",
      info.name,
      any->mesh().get_rank(),
      any->mesh());
  if (info.rule != nullptr && info.rule->draws) {
    for (auto n = info.rule->draws(info.op, stack); n > 0; --n) {
      next_draw(any->mesh());
    }
  }
  const auto self = (*stack)[stack->size() - info.num_args];
  torch::jit::drop(*stack, info.num_args);
  if (info.in_place) {
    stack->push_back(self);
    return;
  }
  std::vector<at::Tensor> results;
  for (const auto& spec : decision.outputs) {
    results.push_back(spec ? empty_on_other_ranks(inputs, spec) : at::Tensor());
    if (self.isTensor() && spec) {
      auto boundaries = carried_boundaries(info.traits, self.toTensor());
      meta_of(results.back()).boundaries = std::move(boundaries);
    }
  }
  push_results(info, std::move(results), stack);
}

} // namespace dtensor::detail
