// SPDX-License-Identifier: BSD-3-Clause
// The scope includes a dispatch key above autograd, which intercepts every
// operator. A differentiable step turns plain operands into DTensors, so that
// all later code, including caches and saved tensors, gets only DTensors.
// Outside of the scope, the key intercepts nothing.
#include <dtensor/ops/implicit_replication.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <dtensor/ops/install/kernels_impl.h>
#include <dtensor/ops/path/op_info_impl.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/ops/scopes/replicated_impl.h>
#include <dtensor/ops/unsharded/unsharded_source_impl.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/dispatch_keys_impl.h>
#include <dtensor/tensor/layout_steps_impl.h>
#include <dtensor/tensor/meta_impl.h>

#include <torch/library.h>

#include <optional>

namespace dtensor {
namespace detail {
namespace {

bool has_styles(const at::Tensor& t) {
  return is_dtensor(t) && meta_of(t).boundaries != nullptr;
}

// Returns the argument that is the input of a styled module, because the style
// determines this input's layout.
std::optional<size_t> styled_input(
    const c10::OperatorHandle& op,
    c10::ArrayRef<c10::IValue> args) {
  const auto* traits = RuleRegistry::global().find_traits(op.operator_name());
  if (traits == nullptr || !traits->boundary) {
    return std::nullopt;
  }
  const auto& parameter = args[traits->boundary->parameter];
  return parameter.isTensor() && has_styles(parameter.toTensor())
      ? std::optional(traits->boundary->input)
      : std::nullopt;
}

// Returns true if LibTorch decomposes the operator into operators that are
// intercepted themselves. One of these may be an operator of a styled module.
bool is_taken_apart(const c10::OperatorHandle& op) {
  return RuleRegistry::global().find(op.operator_name()) == nullptr &&
      is_composite(op);
}

// Returns true if a plain tensor must become a DTensor. A tensor of one element
// already counts as replicated.
bool counts_as_replicated(const at::Tensor& t) {
  return !is_dtensor(t) && t.layout() == at::kStrided &&
      (t.numel() != 1 || records(t));
}

// Returns true for an operand that has a source of its unsharded value. The
// operator then gets the unsharded value, and computes on this rank's plain
// tensors.
bool has_source(const at::Tensor& t) {
  return unsharded_source_of(t) != nullptr;
}

void replicate_plain(const c10::OperatorHandle& op, c10::IValue* args) {
  const auto& arguments = op.schema().arguments();
  const c10::ArrayRef<c10::IValue> all(args, arguments.size());
  const auto like = first_spec(all);
  if (like == nullptr || !any_tensor(all, counts_as_replicated) ||
      any_tensor(all, has_source) ||
      (any_tensor(all, has_styles) && is_taken_apart(op))) {
    return;
  }
  const auto input = styled_input(op, all);
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (i == input || is_written(arguments[i])) {
      continue;
    }
    map_tensors(args + i, 1, [&](const at::Tensor& t, size_t) {
      return counts_as_replicated(t) ? replicated_on_mesh(*like, t) : t;
    });
  }
}

// Returns true if an operator writes to plain tensors alone and its DTensors
// are replicated, so that this rank's local tensors give the values to write.
bool writes_replicated_to_plain(
    const c10::OperatorHandle& op,
    c10::ArrayRef<c10::IValue> args) {
  const auto& arguments = op.schema().arguments();
  if (!op.schema().is_mutable() || wants_gradients(args)) {
    return false;
  }
  bool has_dtensor = false;
  bool has_target = false;
  bool may = true;
  visit_tensors(args, [&](const at::Tensor& t, size_t arg, int) {
    const bool written = is_written(arguments[arg]);
    has_target |= written;
    if (is_dtensor(t)) {
      has_dtensor = true;
      const auto& spec = *spec_of(t);
      may = may && !written && spec.is_replicated() &&
          spec.mesh().contains_this_rank() && !has_styles(t) &&
          unsharded_source_of(t) == nullptr;
    }
  });
  return has_dtensor && has_target && may;
}

void write_to_plain(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto count = op.schema().arguments().size();
  map_tensors(
      mutable_args(stack, count), count, [](const at::Tensor& t, size_t) {
        return is_dtensor(t) ? local_of(t) : t;
      });
  op.callBoxed(stack);
}

void intercept_call(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  if (keys.has_backend(kDTensorBit)) {
    const auto count = op.schema().arguments().size();
    if (writes_replicated_to_plain(op, last_args(*stack, count))) {
      write_to_plain(op, stack);
      return;
    }
    replicate_plain(op, mutable_args(stack, count));
  }
  op.redispatchBoxed(
      keys &
          c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kReplicationKey),
      stack);
}

static_assert(kReplicationKey == c10::DispatchKey::TESTING_ONLY_GenericMode);
TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&intercept_call>());
}

} // namespace
} // namespace detail

ImplicitReplication::ImplicitReplication()
    : outer_(detail::in_implicit_replication()) {
  c10::impl::tls_set_dispatch_key_included(detail::kReplicationKey, true);
}

ImplicitReplication::~ImplicitReplication() {
  c10::impl::tls_set_dispatch_key_included(detail::kReplicationKey, outer_);
}

} // namespace dtensor
