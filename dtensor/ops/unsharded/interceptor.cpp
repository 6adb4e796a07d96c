// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/unsharded/interceptor_impl.h>

#include <ATen/core/enum_tag.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/alias.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/path/in_backward_impl.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/unsharded/derived_unsharded_source_impl.h>
#include <dtensor/ops/unsharded/unsharded_source_impl.h>
#include <dtensor/ops/variants/view_result_impl.h>
#include <dtensor/tensor/dtensor.h>
#include <dtensor/tensor/wrap_impl.h>

#include <atomic>
#include <memory>
#include <utility>

namespace dtensor::detail {
namespace {

std::atomic<Interceptor> sees_all{nullptr};

// Greatest depth of recorded calls, and the interval of depths at which each
// call is checked: can it still be repeated? Without these limits, a loop over
// averages of parameters would keep all of its calls.
constexpr int64_t kDeepest = 4096;
constexpr int64_t kCheckedDepth = 64;

// Properties of the operands of a call.
struct CallOperands {
  bool any_source = false;
  bool writes = false; // to a tensor with a source
  bool open = false;
  bool partial = false;
  bool meshes_differ = false;
  bool others = false; // DTensors without a source
  const DeviceMesh* mesh = nullptr;
};

CallOperands look_at(
    const c10::FunctionSchema& schema,
    c10::ArrayRef<c10::IValue> args) {
  CallOperands found;
  visit_tensors(args, [&](const at::Tensor& t, size_t arg, int) {
    if (!is_dtensor(t)) {
      return;
    }
    const auto& spec = spec_of(t);
    found.partial |= spec->has_partial();
    const auto* source =
        static_cast<const UnshardedSource*>(meta_of(t).unsharded_source.get());
    if (source == nullptr) {
      found.others = true;
      return;
    }
    found.any_source = true;
    found.open |= source->is_open();
    found.writes |= is_written(schema.arguments()[arg]);
    found.meshes_differ |= found.mesh != nullptr &&
        found.mesh->identity() != spec->mesh().identity();
    found.mesh = &spec->mesh();
  });
  return found;
}

// Returns true for a plain tensor, and for a DTensor on a mesh other than the
// parameter's. A plain tensor without dimensions counts only if it requires a
// gradient, or would become a term of a sum over ranks.
bool is_foreign_to(const CallOperands& operands, const at::Tensor& t) {
  if (is_dtensor(t)) {
    return meta_of(t).unsharded_source == nullptr &&
        spec_of(t)->mesh().identity() != operands.mesh->identity();
  }
  const bool records = c10::GradMode::is_enabled() && t.requires_grad();
  const bool is_number = t.unsafeGetTensorImpl()->is_wrapped_number();
  return t.dim() > 0 || (!is_number && (records || operands.partial));
}

// Returns true if the call needs unsharded operands. An operator that writes to
// a parameter, or has no operands besides parameters (as in an optimizer), uses
// the local shards.
bool needs_unsharded(
    const CallOperands& operands,
    c10::ArrayRef<c10::IValue> args) {
  if (!operands.any_source || operands.writes) {
    return false;
  }
  return operands.open || operands.meshes_differ ||
      any_tensor(args, [&](const at::Tensor& t) {
           return is_foreign_to(operands, t);
         });
}

// Drops sources that can no longer provide the unsharded value. Returns true if
// it has dropped a source.
bool drop_lost(c10::ArrayRef<c10::IValue> args) {
  bool any = false;
  visit_tensors(args, [&](const at::Tensor& t, size_t, int) {
    const auto source = source_if_held(t);
    if (source != nullptr && source->is_lost()) {
      drop_source(t);
      any = true;
    }
  });
  return any;
}

// Returns true for views and copies through which modules use their parameters.
bool keeps_boundary(const c10::OperatorHandle& op) {
  const auto* traits = RuleRegistry::global().find_traits(op.operator_name());
  return traits != nullptr &&
      (traits->keeps_boundary || traits->boundary_follows_rows);
}

bool draws(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::nondeterministic_seeded);
}

bool has_source(const c10::IValue& arg) {
  return arg.isTensor() && arg.toTensor().defined() &&
      source_if_held(arg.toTensor()) != nullptr;
}

// Returns true if the operator views the sharded DTensor. A later operator may
// still request the unsharded value of the view.
bool is_view_of_shards(
    const c10::OperatorHandle& op,
    const CallOperands& operands,
    c10::ArrayRef<c10::IValue> args,
    bool wants) {
  const auto* alias = op.schema().arguments()[0].alias_info();
  const bool views_first =
      alias != nullptr && !alias->isWrite() && !op.schema().returns().empty();
  return has_source(args[0]) && views_first &&
      (wants ? keeps_boundary(op) : !operands.others);
}

// Returns true if all operands are parameters, results of operators on
// parameters, and numbers. Calls made by gradient formulas are not recorded.
bool can_be_repeated(
    const c10::OperatorHandle& op,
    const CallOperands& operands) {
  return !operands.others && !draws(op) &&
      (!in_backward() || c10::GradMode::is_enabled());
}

// Returns true if the call must not be recorded.
bool is_too_deep(const RecordedCall& call) {
  return call.depth() > kDeepest ||
      (call.depth() % kCheckedDepth == 0 && call.is_lost());
}

// Replaces a view, without a rule, of a sharded DTensor: views a replicated
// copy, and refuses writes to the view.
void view_copy(
    const c10::OperatorHandle& op,
    torch::jit::Stack args,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  const DTensor self(args[0].toTensor());
  args[0] = at::Tensor(self.redistribute(
      Placements(static_cast<size_t>(self.device_mesh().ndim()), Replicate())));
  stack->insert(stack->end(), args.begin(), args.end());
  go_on(op, keys, stack);
  for (const auto& t : tensors_in(last_args(*stack, 1))) {
    note_copied_from(t, self);
  }
}

// Views a sharded DTensor. LibTorch's casts return the tensor itself if it
// already has the dtype, but its unsharded value may have another dtype. The
// result is then a view of the tensor.
void view_shards(
    const c10::OperatorHandle& op,
    const torch::jit::Stack& args,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  const auto& self = args[0].toTensor();
  const auto base = stack->size() - args.size();
  try {
    go_on(op, keys, stack);
  } catch (const c10::Error&) {
    stack->resize(base);
    view_copy(op, args, keys, stack);
  }
  const auto& result = stack->back();
  const auto dtype = source_if_held(self)->operand_dtype();
  if (result.isTensor() && result.toTensor().is_same(self) && dtype &&
      dtype != self.scalar_type()) {
    stack->back() = at::alias(self);
  }
}

void go_on_and_note(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack,
    RecordedCall::Kind kind) {
  const auto args = last_args(*stack, op.schema().arguments().size()).vec();
  const auto call = std::make_shared<RecordedCall>(op, args, kind);
  if (kind == RecordedCall::Kind::kView) {
    view_shards(op, args, keys, stack);
  } else {
    go_on(op, keys, stack);
  }
  if (!is_too_deep(*call)) {
    note_derived(call, args, last_args(*stack, op.schema().returns().size()));
  }
}

// Returns true for a parameter, a view of it, and a copy of it.
bool stands_for_parameter(const at::Tensor& t) {
  const auto* source = unsharded_source_of(t);
  const auto* derived = dynamic_cast<const DerivedUnshardedSource*>(source);
  return source != nullptr &&
      (source->follows_parameter() || derived == nullptr ||
       keeps_boundary(derived->call()->op()));
}

// Computes a sharded result of parameters alone. Uses unsharded operands
// instead if no rule supports the layouts, or if numbers are drawn for a
// module.
void call_on_shards(
    const c10::OperatorHandle& op,
    const CallOperands& operands,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  const auto count = op.schema().arguments().size();
  if (!can_be_repeated(op, operands)) {
    const bool is_for_module = draws(op) && !operands.others &&
        wants_gradients(last_args(*stack, count));
    is_for_module ? call_with_unsharded(op, stack) : go_on(op, keys, stack);
    return;
  }
  const auto args = last_args(*stack, count).vec();
  const auto base = stack->size() - count;
  try {
    go_on_and_note(op, keys, stack, RecordedCall::Kind::kFunction);
  } catch (const c10::NotImplementedError&) {
    stack->resize(base);
    stack->insert(stack->end(), args.begin(), args.end());
    call_with_unsharded(op, stack);
  }
}

// Runs an operator that writes to a tensor with a source.
void write_to_shards(
    const c10::OperatorHandle& op,
    const CallOperands& operands,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto args = last_args(*stack, schema.arguments().size());
  bool can_repeat = has_source(args[0]) && can_be_repeated(op, operands);
  size_t written = 0;
  visit_tensors(args, [&](const at::Tensor& t, size_t arg, int) {
    const auto source = source_if_held(t);
    if (is_written(schema.arguments()[arg])) {
      ++written;
      can_repeat = can_repeat && arg == 0 && source != nullptr &&
          !source->follows_parameter() && !is_derived_view(*source);
    }
    can_repeat = can_repeat && (is_dtensor(t) || t.dim() == 0);
  });
  visit_tensors(args, [&](const at::Tensor& t, size_t arg, int) {
    const auto source = source_if_held(t);
    if (source != nullptr && is_written(schema.arguments()[arg])) {
      source->note_write();
      if (!can_repeat && !source->follows_parameter()) {
        drop_source(t);
      }
    }
  });
  if (can_repeat && written == 1) {
    go_on_and_note(op, keys, stack, RecordedCall::Kind::kInPlace);
  } else {
    go_on(op, keys, stack);
  }
}

} // namespace

void set_interceptor(Interceptor sees) {
  sees_all = sees;
}

void go_on(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  keys = keys &
      c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kInterceptKey);
  if (keys.has_backend(kDTensorBit)) {
    keys = keys.remove_backend(c10::BackendComponent::MetaBit);
  }
  op.redispatchBoxed(keys, stack);
}

void intercept_operator(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  if (c10::impl::tls_is_dispatch_key_included(kInterceptKey)) {
    sees_all.load()(op, keys, stack);
    return;
  }
  if (!keys.has_backend(kDTensorBit)) {
    go_on(op, keys, stack);
    return;
  }
  const auto& schema = op.schema();
  const auto args = last_args(*stack, schema.arguments().size());
  auto operands = look_at(schema, args);
  bool wants = needs_unsharded(operands, args);
  if ((wants || operands.writes) && drop_lost(args)) {
    operands = look_at(schema, args);
    wants = needs_unsharded(operands, args);
  }
  if (!operands.any_source) {
    go_on(op, keys, stack);
  } else if (operands.writes) {
    write_to_shards(op, operands, keys, stack);
  } else if (is_view_of_shards(op, operands, args, wants)) {
    go_on_and_note(op, keys, stack, RecordedCall::Kind::kView);
  } else if (wants) {
    call_with_unsharded(op, stack);
  } else {
    call_on_shards(op, operands, keys, stack);
  }
}

void before_set_data(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  const auto args = last_args(*stack, op.schema().arguments().size());
  const auto self = args[0].toTensor();
  const auto data = args[1].toTensor();
  auto* source = unsharded_source_of(self);
  DTENSOR_CHECK_VALUE(
      source != nullptr || !stands_for_parameter(data),
      "[set_data] cannot assign the data of a fully_shard parameter, {}, to "
      "another tensor, which would not be gathered. Instead of cloning a "
      "module, create a new one, call fully_shard for it, and then "
      "set_model_state_dict.",
      *spec_of(data));
  if (source == nullptr && unsharded_source_of(data) != nullptr) {
    drop_source(data);
  }
  if (source != nullptr && source->keeps_source_for(data)) {
    auto meta = meta_of(data).copy();
    meta->unsharded_source = meta_of(data).unsharded_source;
    meta->view_facts = meta_of(self).view_facts; // counts its writes
    meta->source_of_next = meta_of(self).unsharded_source;
    data.unsafeGetTensorImpl()->set_backend_meta(std::move(meta));
    add_intercept_key(data); // the parameter now has the keys of the data
    explain_no_data(data);
  }
  intercept_operator(op, keys, stack);
}

} // namespace dtensor::detail
