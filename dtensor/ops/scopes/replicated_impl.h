// SPDX-License-Identifier: BSD-3-Clause
// Operators without a rule, on replicated tensors. Such an operator runs as one
// region: the plain operator on the local tensors. LibTorch would decompose the
// operator or its gradient formula into operators that read storage or make
// plain tensors.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <dtensor/api.h>
#include <dtensor/ops/path/op_info_impl.h>
#include <dtensor/tensor/autograd_impl.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace dtensor::detail {

/// Returns true if every DTensor among `args` is replicated.
DTENSOR_INTERNAL_API bool all_replicated(c10::ArrayRef<c10::IValue> args);

/// Returns the layout of the first DTensor among `args`; null if there is none.
SpecPtr first_spec(c10::ArrayRef<c10::IValue> args);

/// Wraps `plain`, which is equal on all ranks, as a replicated DTensor on the
/// mesh of `like`.
at::Tensor place_plain(const at::Tensor& plain, const Spec& like);

/// Returns true if an operator takes and returns tensors, writes none, and
/// returns none that may alias an argument according to its schema.
DTENSOR_INTERNAL_API bool is_functional(const c10::FunctionSchema& schema);

/// Returns true if a call draws random numbers. Operators with dropout draw
/// none if there is nothing to drop.
bool draws(const OpInfo& info, c10::ArrayRef<c10::IValue> args);

/// Returns true if all distributed operands are replicated and nothing is
/// drawn, so that every rank computes the same result.
bool runs_replicated(const OpInfo& info, c10::ArrayRef<c10::IValue> args);

/// Runs a functional operator whose distributed operands are all replicated:
/// the plain operator on their local tensors, with its autograd if gradients
/// are needed. Returns false, and does nothing, for other calls and for an
/// operator whose result turns out to be a view.
bool compute_replicated(const OpInfo& info, torch::jit::Stack* stack);

/// Returns the position of the argument that torch::nn creates if the caller
/// omits it: a state of zeros, or the offsets of even bags
/// (OpTraits::module_created_arg). Empty if there is none.
std::optional<size_t> made_by_modules(const OpInfo& info);

/// Replaces tensors of argument `made` by DTensors if their values follow from
/// global shapes alone, and are therefore equal on every rank.
void distribute_module_created(
    const c10::FunctionSchema& schema,
    size_t made,
    c10::IValue* args);

/// A scope in which this rank runs the decomposition of `info`, an operator
/// without a rule, on `args`: DTensors and plain tensors of one element. Larger
/// plain tensors come from the decomposition, which makes them from sizes.
/// Scopes nest; the outermost scope is the program's call.
class DecompositionScope {
 public:
  DecompositionScope(const OpInfo& info, c10::ArrayRef<c10::IValue> args);
  ~DecompositionScope();
  DecompositionScope(const DecompositionScope&) = delete;
  DecompositionScope& operator=(const DecompositionScope&) = delete;

  /// Returns the name of the operator that the program called.
  const std::string& name() const {
    return info_.name;
  }
  /// Returns true if plain tensors of the decomposition may count as
  /// replicated: no random numbers are drawn, and no gradient formula uses the
  /// plain tensors after the scope.
  bool may_replicate() const {
    return may_replicate_;
  }
  /// Returns true if plain tensors of one element may count as replicated, too:
  /// the program passed no plain tensor.
  bool may_replicate_all() const {
    return may_replicate_ && !has_plain_;
  }
  /// Throws NotImplementedError for `inner`, an operator of the decomposition
  /// that cannot run because of `why`: "has none".
  [[noreturn]] void refuse(const std::string& inner, const char* why) const;

 private:
  const OpInfo& info_;
  std::vector<SpecPtr> operands_;
  bool may_replicate_;
  bool has_plain_ = false; // among the arguments
  const DecompositionScope* outer_;
};

/// Returns the outermost decomposition of this rank; null outside of them.
const DecompositionScope* current_decomposition();

/// Kernel of an operator on replicated tensors; `other` is LibTorch's kernel,
/// for all other calls.
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
  void call_decomposition(
      const c10::OperatorHandle& op,
      c10::DispatchKeySet keys,
      torch::jit::Stack* stack);

  std::shared_ptr<const OpInfo> info_;
  c10::SafeKernelFunction other_;
  When when_;
  std::optional<size_t> made_; // position of OpTraits::module_created_arg
};

// Calls of operators without a rule that gather their operands, inside an
// on_missing_rule() scope or because of OpTraits::gathers
// (on_missing_rule.cpp). Decisions of these calls are not cached, because
// outside of the scope the same call is an error.

/// Returns true if a decision gathers the operands and takes the result shapes
/// from the local results. Such decisions are made for calls of this kind, and
/// for operators whose result shapes depend on values.
inline bool is_replicated_fallback(const Decision& decision) {
  return decision.redistributes && decision.shapes_from_results;
}

/// Returns the decision that replicates all operands.
std::shared_ptr<Decision> make_replicated_decision(const OpCall& call);

/// Returns the decision that replicates all operands, for operands that are not
/// all replicated. Null for a call that does not gather, and for an operator
/// that must see the operands in their layouts.
std::shared_ptr<Decision> decide_replicated_fallback(
    const OpInfo& info,
    const OpCall& call);

/// Counts a call with such a decision, and warns at the first call.
void count_missing_rule(
    const OpInfo& info,
    const Decision& decision,
    c10::ArrayRef<c10::IValue> args);

/// Returns true if a call of an operator without a rule runs on replicated
/// operands for one of these reasons.
bool uses_replicated_fallback(
    const OpInfo& info,
    c10::ArrayRef<c10::IValue> args);

/// Replaces the DTensors among the arguments by replicated ones,
/// differentiably. Does so only in a call that uses_replicated_fallback(), and
/// only for functional operators without a rule.
void replicate_on_missing_rule(const OpInfo& info, torch::jit::Stack* stack);

/// Runs op_ without gradients as op on replicated operands, followed by a copy
/// into the first argument. Returns false, and does nothing, for other calls.
bool write_on_missing_rule(const OpInfo& info, torch::jit::Stack* stack);

} // namespace dtensor::detail
