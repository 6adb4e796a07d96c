// SPDX-License-Identifier: BSD-3-Clause
// What an operator without a rule does on replicated tensors: the plain
// operator on the local tensors, as one region. LibTorch would decompose it
// into operators that read storage, or make plain tensors on the way, in the
// operator or in the formula of its gradient.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <dtensor/ops/op_info_impl.h>
#include <dtensor/tensor/autograd_impl.h>

#include <memory>
#include <optional>

namespace dtensor::detail {

/// The layout of the first DTensor among `args`; null if there is none.
SpecPtr first_spec(c10::ArrayRef<c10::IValue> args);

/// `whole`, which every rank has, as a DTensor on the mesh of `like`.
at::Tensor place_plain(const at::Tensor& whole, const Spec& like);

/// Whether an operator takes and gives tensors, writes none, and gives none
/// that its schema says to share memory with another.
bool is_functional(const c10::FunctionSchema& schema);

/// Whether a call draws random numbers: operators that say so do not if there
/// is nothing to drop.
bool draws(const OpInfo& info, c10::ArrayRef<c10::IValue> args);

/// Whether all distributed operands are replicated and nothing is drawn: every
/// rank computes the same.
bool is_computed_whole(const OpInfo& info, c10::ArrayRef<c10::IValue> args);

/// Runs a functional operator whose distributed operands are all replicated on
/// their local tensors, with the autograd of the plain operator if there is to
/// be any. False, and nothing done, for other calls and for an operator whose
/// result turns out to be a view.
bool compute_replicated(const OpInfo& info, torch::jit::Stack* stack);

/// Position of the argument that torch::nn makes by itself where it is left
/// out: a state of zeros, the offsets of even bags (OpTraits::made_arg).
/// Nothing if there is none.
std::optional<size_t> made_by_modules(const OpInfo& info);

/// Replaces tensors of argument `made` that follow from global shapes alone, so
/// that they mean the same on every rank.
void place_what_modules_make(
    const c10::FunctionSchema& schema,
    size_t made,
    c10::IValue* args);

/// The kernel of such an operator: `other` is LibTorch's, for all other calls.
class ReplicatedKernel final : public c10::OperatorKernel {
 public:
  enum class When { kAlways, kForGradients };
  ReplicatedKernel(
      std::shared_ptr<const OpInfo> info,
      c10::SafeKernelFunction other,
      When when);

  void operator()(
      const c10::OperatorHandle& op,
      c10::DispatchKeySet keys,
      torch::jit::Stack* stack);

 private:
  std::shared_ptr<const OpInfo> info_;
  c10::SafeKernelFunction other_;
  When when_;
  std::optional<size_t> made_; // an argument that torch::nn may make itself
};

} // namespace dtensor::detail
