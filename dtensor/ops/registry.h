// SPDX-License-Identifier: BSD-3-Clause
// RuleRegistry: maps operator names to rules. Programs add to the global
// registry with register_sharding() (ops/register_sharding.h).
//
//   rules.einsum("mm", "mk,kn->mn");
//   rules.einsum("bmm", "bmk,bkn->bmn");
//
// Names are "op" or "op.overload" in namespace aten unless they have "::".
// In-place (op_), out and foreach variants need no entry: their rules follow
// from the schema.
#pragma once

#include <dtensor/ops/strategy.h>

#include <string>
#include <string_view>
#include <unordered_map>

namespace dtensor {

class DTENSOR_API RuleRegistry {
 public:
  /// Returns the registry that dispatch uses.
  static const RuleRegistry& global();

  /// Adds any rule; the functions below add rules of one form. All of them
  /// throw ValueError if the operator already has a rule, and accept names that
  /// LibTorch lacks, which unknown_names() lists.
  OpRule& add(std::string_view name, OpRule rule);
  /// Sets the rule of an operator, replacing any existing rule.
  void replace(std::string_view name, OpRule rule);

  /// Adds a rule with strategies per mesh dimension.
  OpRule& dim_rule(std::string_view name, DimRule rule);
  /// Adds a rule that chooses for the whole mesh at once.
  OpRule& mesh_rule(std::string_view name, MeshRule rule);
  /// Adds an einsum rule: letters are dimensions, inputs are the tensor
  /// arguments in order. A letter of the output may be sharded in all tensors
  /// that have it. Sharding a letter that only inputs have gives Partial(sum).
  /// One input may be Partial(sum) while the others are replicated.
  OpRule& einsum(std::string_view name, std::string_view equation);
  /// Adds a kernel that computes the DTensor results itself, in place of a
  /// local call.
  OpRule& kernel(std::string_view name, DTensorKernel kernel);
  /// Keeps the operator's composite kernel, which decomposes it into operators
  /// with rules.
  void keep_composite(std::string_view name);
  /// Sets the traits of an operator without a rule, such as an in-place form.
  void traits(std::string_view name, const OpTraits& traits);

  /// Returns the rule of an operator; null if it has none.
  const OpRule* find(const c10::OperatorName& name) const;
  /// Returns true if keep_composite() was called for the operator.
  bool keeps_composite(const c10::OperatorName& name) const;
  /// Returns the traits set by traits(), or those of the operator's rule; null
  /// if both are missing.
  const OpTraits* find_traits(const c10::OperatorName& name) const;
  /// Returns the names of all operators with their own rule, sorted.
  std::vector<std::string> names() const;
  /// Returns the names of operators with traits but no rule.
  std::vector<std::string> names_of_traits() const;
  /// Returns the names of operators that keep their composite kernel.
  std::vector<std::string> composite_names() const;
  /// Returns the names that match no LibTorch operator, such as misspelt ones.
  /// Their rules never run.
  std::vector<std::string> unknown_names() const;

 private:
  std::unordered_map<c10::OperatorName, OpRule> rules_;
  std::unordered_map<c10::OperatorName, bool> composite_;
  std::unordered_map<c10::OperatorName, OpTraits> traits_;
};

/// Parses an operator name: "add.Tensor" is overload Tensor of aten::add.
DTENSOR_API c10::OperatorName parse_operator_name(std::string_view name);

} // namespace dtensor
