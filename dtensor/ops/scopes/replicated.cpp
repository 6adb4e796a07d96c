// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/scopes/replicated_impl.h>

#include <ATen/DTensorState.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/equal.h>
#include <dtensor/comm/group/owner_impl.h>
#include <dtensor/comm/rank/rank_local_impl.h>
#include <dtensor/comm/rank_generator_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>

#include <algorithm>
#include <vector>

namespace dtensor::detail {
namespace {

RankLocal<const DecompositionScope*> outermost_decomposition;

bool holds_tensors(c10::TypePtr type) {
  for (;;) {
    if (auto optional = type->cast<c10::OptionalType>()) {
      type = optional->getElementType();
    } else if (auto list = type->cast<c10::ListType>()) {
      type = list->getElementType();
    } else {
      return type->kind() == c10::TypeKind::TensorType;
    }
  }
}

bool any_holds_tensors(const std::vector<c10::Argument>& values) {
  return std::ranges::any_of(
      values, [](const auto& value) { return holds_tensors(value.type()); });
}

// Returns the layout of one of the operands; null if the operator needs the
// DTensors themselves. A plain tensor of at most one element counts as equal on
// all ranks.
SpecPtr layout_of_replicated(
    const OpInfo& info,
    c10::ArrayRef<c10::IValue> args) {
  const auto like = first_spec(args);
  bool fits = like != nullptr && like->mesh().contains_this_rank();
  visit_tensors(args, [&](const at::Tensor& t, size_t, int) {
    if (!is_dtensor(t)) {
      fits &= t.numel() <= 1 || at::get_dtensor_allow_implicit_replication();
    } else if (fits) {
      const auto& meta = meta_of(t);
      check_owned_by_this_rank(info.name, *meta.spec);
      fits = meta.spec->is_replicated() && meta.boundaries == nullptr &&
          meta.spec->mesh() == like->mesh();
    }
  });
  return fits ? like : nullptr;
}

// Returns true for the plain zeros that modules create if they are called
// without a state.
bool is_zero_state(const at::Tensor& t) {
  return !t.requires_grad() && at::count_nonzero(t).item<int64_t>() == 0;
}

// Returns true for the offsets of bags of equal size, which embedding_bag
// creates from the rows of ids.
bool are_even_offsets(const at::Tensor& t, int64_t num_ids) {
  const auto bags = t.numel();
  return t.dim() == 1 && at::isIntegralType(t.scalar_type(), false) &&
      bags > 0 && num_ids >= bags && num_ids % bags == 0 &&
      at::equal(t, at::arange(0, num_ids, num_ids / bags, t.options()));
}

bool has_view_of(
    const torch::jit::Stack& results,
    const std::vector<at::Tensor>& inputs) {
  return any_tensor(results, [&](const at::Tensor& result) {
    return std::ranges::any_of(inputs, [&](const at::Tensor& input) {
      return result.has_storage() && input.has_storage() &&
          result.is_alias_of(input);
    });
  });
}

// Returns a layout for tensors that LibTorch's decomposition creates from sizes
// alone, which are equal on all ranks. An example is zeros, from an operator on
// an empty tensor. Null if the tensor may depend on another plain tensor, or on
// a module's local output.
SpecPtr layout_of_sizes(c10::ArrayRef<c10::IValue> args) {
  const bool fits = all_tensors(args, [](const at::Tensor& t) {
    return is_dtensor(t) ? meta_of(t).boundaries == nullptr : t.numel() == 1;
  });
  return fits ? first_spec(args) : nullptr;
}

} // namespace

void distribute_module_created(
    const c10::FunctionSchema& schema,
    size_t made,
    c10::IValue* args) {
  const auto like =
      first_spec(c10::ArrayRef<c10::IValue>(args, schema.arguments().size()));
  if (like == nullptr) {
    return;
  }
  const auto ids = schema.argumentIndexWithName("indices");
  map_tensors(args + made, 1, [&](const at::Tensor& t, size_t) {
    const bool fits = !is_dtensor(t) &&
        (ids ? are_even_offsets(t, args[*ids].toTensor().numel())
             : is_zero_state(t));
    return fits ? place_plain(t, *like) : t;
  });
}

std::optional<size_t> made_by_modules(const OpInfo& info) {
  const auto index =
      info.op.schema().argumentIndexWithName(info.traits.module_created_arg);
  return index ? std::optional(static_cast<size_t>(*index)) : std::nullopt;
}

bool all_replicated(c10::ArrayRef<c10::IValue> args) {
  return all_tensors(args, [](const at::Tensor& t) {
    return !is_dtensor(t) || spec_of(t)->is_replicated();
  });
}

SpecPtr first_spec(c10::ArrayRef<c10::IValue> args) {
  SpecPtr found;
  visit_tensors(args, [&](const at::Tensor& t, size_t, int) {
    if (found == nullptr && is_dtensor(t)) {
      found = spec_of(t);
    }
  });
  return found;
}

at::Tensor place_plain(const at::Tensor& plain, const Spec& like) {
  return wrap(
      like.mesh().contains_this_rank() ? plain : plain.new_empty({0}),
      replicated_spec(like, plain));
}

bool is_functional(const c10::FunctionSchema& schema) {
  const auto& arguments = schema.arguments();
  return any_holds_tensors(arguments) && any_holds_tensors(schema.returns()) &&
      std::ranges::none_of(arguments, [](const auto& a) {
           return a.alias_info() != nullptr;
         });
}

bool draws(const OpInfo& info, c10::ArrayRef<c10::IValue> args) {
  if (!info.random) {
    return false;
  }
  const auto dropout = info.op.schema().argumentIndexWithName("dropout");
  const auto train = info.op.schema().argumentIndexWithName("train");
  return !dropout || !train ||
      (args[static_cast<size_t>(*dropout)].toDouble() != 0 &&
       args[static_cast<size_t>(*train)].toBool());
}

bool runs_replicated(const OpInfo& info, c10::ArrayRef<c10::IValue> args) {
  return layout_of_replicated(info, args) != nullptr && !draws(info, args);
}

bool compute_replicated(const OpInfo& info, torch::jit::Stack* stack) {
  const auto args = last_args(*stack, info.num_args);
  const auto like = layout_of_replicated(info, args);
  if (like == nullptr || draws(info, args)) {
    return false;
  }
  torch::jit::Stack results(args.begin(), args.end());
  std::vector<at::Tensor> inputs;
  map_tensors(results.data(), results.size(), [&](const at::Tensor& t, size_t) {
    inputs.push_back(is_dtensor(t) ? to_local_autograd(t) : t);
    return inputs.back();
  });
  {
    const RequireEqualOnAllRanks no_draws(info.name);
    info.op.callBoxed(&results);
  }
  if (has_view_of(results, inputs)) {
    return false;
  }
  map_results(&results, info.num_returns, [&](const at::Tensor& t, size_t) {
    if (!has_dense_format(t)) {
      refuse_format(info.name, "returns", t);
    }
    return from_local_autograd(t, replicated_spec(*like, t));
  });
  torch::jit::drop(*stack, info.num_args);
  stack->insert(stack->end(), results.begin(), results.end());
  return true;
}

DecompositionScope::DecompositionScope(
    const OpInfo& info,
    c10::ArrayRef<c10::IValue> args)
    : info_(info),
      may_replicate_(!info.random && !wants_gradients(args)),
      outer_(outermost_decomposition.get()) {
  if (outer_ != nullptr) {
    return;
  }
  visit_tensors(args, [&](const at::Tensor& t, size_t, int) {
    if (is_dtensor(t)) {
      operands_.push_back(spec_of(t));
    } else {
      has_plain_ = true;
    }
  });
  outermost_decomposition.get() = this;
}

DecompositionScope::~DecompositionScope() {
  if (outer_ == nullptr) {
    outermost_decomposition.get() = nullptr;
  }
}

void DecompositionScope::refuse(const std::string& inner, const char* why)
    const {
  std::string layouts;
  for (const auto& spec : operands_) {
    layouts += (layouts.empty() ? "" : ", ") + to_string(*spec);
  }
  DTENSOR_THROW_NOT_IMPLEMENTED(
      "[{}] no sharding rule, and {}, which it calls, {}; the operands are {}. "
      "Redistribute them to Replicate first.",
      info_.name,
      inner,
      why,
      layouts);
}

const DecompositionScope* current_decomposition() {
  return outermost_decomposition.get();
}

ReplicatedKernel::ReplicatedKernel(
    std::shared_ptr<const OpInfo> info,
    c10::SafeKernelFunction other,
    When when)
    : info_(std::move(info)),
      other_(std::move(other)),
      when_(when),
      made_(made_by_modules(*info_)) {}

void ReplicatedKernel::call_decomposition(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  const auto args = last_args(*stack, info_->num_args);
  const auto like = layout_of_sizes(args);
  if (like == nullptr) {
    other_.callBoxed(op, keys, stack);
    return;
  }
  {
    const DecompositionScope scope(*info_, args);
    other_.callBoxed(op, keys, stack);
  }
  map_results(stack, info_->num_returns, [&](const at::Tensor& t, size_t) {
    return !t.defined() || is_dtensor(t) || t.requires_grad()
        ? t
        : place_plain(t, *like);
  });
}

void ReplicatedKernel::operator()(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  if (made_) {
    distribute_module_created(
        op.schema(), *made_, mutable_args(stack, info_->num_args));
  }
  const auto args = last_args(*stack, info_->num_args);
  if (when_ == When::kForGradients && !wants_gradients(args)) {
    other_.callBoxed(op, keys, stack);
    return;
  }
  replicate_on_missing_rule(*info_, stack);
  if (!compute_replicated(*info_, stack)) {
    call_decomposition(op, keys, stack);
  }
}

} // namespace dtensor::detail
