// SPDX-License-Identifier: BSD-3-Clause
// RuleRegistry: operator name -> rule. Programs add to the one that dispatch
// asks by register_sharding() (ops/register_sharding.h).
//
//   rules.einsum("mm", "mk,kn->mn");
//   rules.einsum("bmm", "bmk,bkn->bmn");
//
// Names are "op" or "op.overload" in namespace aten unless they have "::".
// In-place (op_), out and foreach variants need no entry: they follow from the
// schema.
#pragma once

#include <dtensor/ops/strategy.h>

#include <string>
#include <string_view>
#include <unordered_map>

namespace dtensor {

class DTENSOR_API RuleRegistry {
 public:
  /// The one that dispatch asks.
  static const RuleRegistry& global();

  /// The generic form. Throws ValueError if the operator has a rule already.
  /// Whether LibTorch has the operator is not asked: see unknown_names().
  OpRule& add(std::string_view name, OpRule rule);
  /// The same in place of the rule that it may have.
  void replace(std::string_view name, OpRule rule);

  /// Strategies per mesh dimension.
  OpRule& dim_rule(std::string_view name, DimRule rule);
  /// One function for the whole mesh.
  OpRule& mesh_rule(std::string_view name, MeshRule rule);
  /// An einsum: letters are dimensions, inputs are the tensor arguments in
  /// order. A letter of the output may be sharded everywhere it occurs; a
  /// letter that is summed away gives Partial(sum). One input may be
  /// Partial(sum) while the others are replicated.
  OpRule& einsum(std::string_view name, std::string_view equation);
  /// Written with DTensor operators (or by hand) instead of a local call.
  OpRule& kernel(std::string_view name, DTensorKernel kernel);
  /// The operator's own composite kernel decomposes it into operators that
  /// have rules; it keeps it.
  void keep_composite(std::string_view name);
  /// What is known of an operator that has no rule of its own, as an in-place
  /// form.
  void traits(std::string_view name, const OpTraits& traits);

  /// Null if there is none.
  const OpRule* find(const c10::OperatorName& name) const;
  /// Whether keep_composite() was said of it.
  bool keeps_composite(const c10::OperatorName& name) const;
  /// Those said of it alone, or of its rule; null if it has neither.
  const OpTraits* find_traits(const c10::OperatorName& name) const;
  /// All names with a rule of their own, sorted.
  std::vector<std::string> names() const;
  /// Those with traits alone.
  std::vector<std::string> names_of_traits() const;
  /// Those that keep their composite kernel.
  std::vector<std::string> composite_names() const;
  /// Any of these that LibTorch has no operator for: misspelt, they never run.
  std::vector<std::string> unknown_names() const;

 private:
  std::unordered_map<c10::OperatorName, OpRule> rules_;
  std::unordered_map<c10::OperatorName, bool> composite_;
  std::unordered_map<c10::OperatorName, OpTraits> traits_;
};

/// "add.Tensor" -> aten::add overload Tensor.
DTENSOR_API c10::OperatorName parse_operator_name(std::string_view name);

} // namespace dtensor
