// SPDX-License-Identifier: BSD-3-Clause
// Dispatch, the path of every operator: decide -> redistribute the inputs ->
// local operator -> wrap the results.
#include <dtensor/ops/path/dispatch_impl.h>

#include <dtensor/ops/boundary/boundaries_impl.h>
#include <dtensor/ops/path/decide_impl.h>
#include <dtensor/ops/path/local_call_impl.h>
#include <dtensor/ops/path/noting_errors_impl.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/ops/path/with_boundary_impl.h>
#include <dtensor/ops/scopes/explicit_redistribution_impl.h>
#include <dtensor/ops/scopes/plain_operand_impl.h>
#include <dtensor/ops/scopes/replicated_impl.h>
#include <dtensor/ops/variants/view_result_impl.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>

#include <c10/core/InferenceMode.h>

#include <utility>

namespace dtensor::detail {
namespace {

at::Tensor
local_input(const at::Tensor& t, const SpecPtr& wanted, const Spec& mesh_like) {
  if (!is_dtensor(t)) {
    return wanted == nullptr ? t : placed_plain(t, wanted, mesh_like);
  }
  return wanted == nullptr
      ? local_of(t)
      : redistribute_local(local_of(t), spec_of(t), wanted);
}

// Wraps a local tensor outside of inference mode, because a view of a normal
// tensor is a normal tensor even in inference mode.
at::Tensor wrap_normal(at::Tensor local, SpecPtr spec) {
  const c10::InferenceMode normal(false);
  return wrap(std::move(local), std::move(spec));
}

// First argument of a call, if the results depend on it: the argument is
// written or viewed, or is a parameter with attached styles. Made before the
// arguments become local tensors.
class FirstArgument {
 public:
  FirstArgument(const OpInfo& info, const c10::IValue* args) {
    if (info.num_args == 0 || !args[0].isTensor()) {
      return;
    }
    const auto& first = args[0].toTensor();
    if (info.in_place) {
      written_ = first;
      // A change of shape is not a write. write_through() counts writes to
      // views that are copies.
      if (is_dtensor(first) && !info.inplace_view &&
          copied_from(first) == nullptr) {
        count_write(first);
      }
      return;
    }
    if (info.is_view) {
      is_normal_ = c10::InferenceMode::is_enabled() && !first.is_inference();
      if (is_dtensor(first)) {
        viewed_ = ViewBase(first);
      }
    }
    boundaries_ = carried_boundaries(info.traits, first);
  }

  /// Replaces the local tensor of the written argument, which changes its
  /// shape.
  at::Tensor rewritten(at::Tensor local, SpecPtr spec) const {
    rewrap(written_, std::move(local), std::move(spec));
    return written_;
  }
  const at::Tensor& written() const {
    return written_;
  }
  at::Tensor result(
      at::Tensor local,
      SpecPtr spec,
      const Decision& decision,
      size_t index) const {
    const auto place = viewed_.place_of(local, decision, index);
    auto made = is_normal_ ? wrap_normal(std::move(local), std::move(spec))
                           : wrap(std::move(local), std::move(spec));
    if (boundaries_ != nullptr) {
      meta_of(made).boundaries = boundaries_;
    }
    viewed_.finish(made, place);
    return made;
  }

 private:
  at::Tensor written_;
  ViewBase viewed_;
  bool is_normal_ = false;
  std::shared_ptr<const Boundaries> boundaries_;
};

// Copies the result of an in-place operator back to `self` if the operator
// computed on a redistributed copy. `self` keeps its layout.
void copy_back(
    const Decision& decision,
    const at::Tensor& local,
    const at::Tensor& self) {
  if (decision.inputs.empty() || decision.inputs[0] == nullptr ||
      !is_dtensor(self) || decision.outputs.empty()) {
    return;
  }
  meta_of(self).local().copy_(
      redistribute_local(local, decision.outputs[0], spec_of(self)));
}

void run_on_mesh(
    const OpInfo& info,
    const Decision& decision,
    const Spec& any,
    torch::jit::Stack* stack) {
  auto* const args = mutable_args(stack, info.num_args);
  const FirstArgument first(info, args);
  map_tensors(args, info.num_args, [&](const at::Tensor& t, size_t i) {
    return local_input(t, decision.inputs[i], any);
  });
  call_local(info, decision, stack);
  map_results(stack, info.num_returns, [&](at::Tensor local, size_t i) {
    const bool is_first = info.in_place && i == 0;
    if (is_first && !info.inplace_view) {
      copy_back(decision, local, first.written());
      return first.written();
    }
    auto spec = result_spec(info, decision, any, local, i);
    return is_first
        ? first.rewritten(std::move(local), std::move(spec))
        : first.result(std::move(local), std::move(spec), decision, i);
  });
}

// Runs a decided call: all steps after the decision.
void run(
    const OpInfo& info,
    const Decision& decision,
    torch::jit::Stack* stack) {
  if (C10_UNLIKELY(decision.redistributes)) {
    before_redistributing(info, decision, last_args(*stack, info.num_args));
  }
  const auto any = any_spec(decision, *stack, info.num_args);
  if (C10_UNLIKELY(!any->mesh().contains_this_rank())) {
    outside_mesh(info, decision, any, {}, stack);
    return;
  }
  noting_errors(any, [&] { run_on_mesh(info, decision, *any, stack); });
}

void dispatch_once(const OpInfo& info, torch::jit::Stack* stack) {
  if (info.rule != nullptr &&
      info.rule->runs_kernel(last_args(*stack, info.num_args))) {
    noting_errors(first_spec(last_args(*stack, info.num_args)), [&] {
      info.rule->kernel(info.op, stack);
    });
    return;
  }
  if (C10_UNLIKELY(info.rule == nullptr) &&
      write_on_missing_rule(info, stack)) {
    return;
  }
  run(info, *decide(info, *stack), stack);
}

bool writes_copied_view(const OpInfo& info, const torch::jit::Stack& stack) {
  if (!info.in_place) {
    return false;
  }
  const auto& self = last_args(stack, info.num_args)[0];
  return self.isTensor() && is_dtensor(self.toTensor()) &&
      copied_from(self.toTensor()) != nullptr;
}

} // namespace

void bring_up_to_date(c10::ArrayRef<c10::IValue> args) {
  if (C10_LIKELY(!copied_views_exist())) {
    return;
  }
  for (const auto& t : tensors_in(args)) {
    if (is_dtensor(t)) {
      bring_up_to_date(t);
    }
  }
}

void dispatch_in_boundary(const OpInfo& info, torch::jit::Stack* stack) {
  if (C10_LIKELY(!copied_views_exist())) {
    dispatch_once(info, stack);
    return;
  }
  bring_up_to_date(last_args(*stack, info.num_args));
  if (!writes_copied_view(info, *stack)) {
    dispatch_once(info, stack);
    return;
  }
  const auto self = last_args(*stack, info.num_args)[0].toTensor();
  if (info.inplace_view) {
    dispatch_once(info, stack);
    note_change_of_shape(self);
    return;
  }
  check_can_write_through(info.name, self);
  dispatch_once(info, stack);
  write_through(self);
}

void dispatch(const OpInfo& info, torch::jit::Stack* stack) {
  if (C10_UNLIKELY(info.traits.adds_bias) && add_module_bias(stack)) {
    return; // in inference mode, which skips the autograd key
  }
  if (C10_UNLIKELY(info.traits.accepts_plain_source)) {
    distribute_equal_plain(info, mutable_args(stack, info.num_args));
  }
  with_boundary(info, stack, [&](const Boundary* boundary, const Conversion&) {
    dispatch_in_boundary(info, stack);
    convert_unrecorded(boundary, stack);
  });
}

} // namespace dtensor::detail
