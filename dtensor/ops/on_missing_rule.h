// SPDX-License-Identifier: BSD-3-Clause
// on_missing_rule: runs operators without a sharding rule on replicated
// operands. Without this scope, such operators throw.
//
//   const auto scope = on_missing_rule(Replicate());
//   auto t = at::trace(x);                  // x S(0): gathered, with a warning
//   scope.costs().at("aten::trace").wire_bytes;
//
// docs/concepts/experimental.md has more.
#pragma once

#include <dtensor/api.h>
#include <dtensor/layout/placement.h>

#include <cstdint>
#include <map>
#include <string>

namespace dtensor {

/// Cost, on this rank, of the calls of an operator without a rule.
struct MissingRuleCost {
  int64_t calls = 0;
  int64_t collectives = 0;
  /// Bytes that a rank sends if every collective is bandwidth-optimal.
  double wire_bytes = 0;
};

/// Scope in which this rank runs operators without a sharding rule on
/// replicated operands. Sharded and partial operands are redistributed to
/// Replicate, every rank computes the full result, and the results are
/// replicated. An in-place operator keeps the layout of the tensor that it
/// writes. Gradients are those of the plain operator. The first call of each
/// operator in a process warns (TORCH_WARN).
///
/// Operators that draw random numbers and operators that return views still
/// throw. Composite operators without a rule run on replicated operands as
/// well, even if LibTorch could decompose them into operators with rules.
/// Scopes of a rank nest, and each counts the calls inside it. A scope applies
/// on every thread that works for the rank, such as one that runs a backward
/// pass.
///
/// Throws ValueError for a placement other than Replicate().
///
/// Python: on_missing_rule of this library's package dtensor. In PyTorch, an
/// operator without a strategy is an error.
class DTENSOR_API OnMissingRule {
 public:
  explicit OnMissingRule(const Placement& operands);
  ~OnMissingRule();
  OnMissingRule(const OnMissingRule&) = delete;
  OnMissingRule& operator=(const OnMissingRule&) = delete;

  /// Costs, by operator ("aten::trace"), of the calls that ran on replicated
  /// operands because of this scope.
  const std::map<std::string, MissingRuleCost>& costs() const {
    return costs_;
  }
  /// Adds one call to this scope and the enclosing ones.
  void add(const std::string& op, const MissingRuleCost& cost);

 private:
  OnMissingRule* outer_;
  std::map<std::string, MissingRuleCost> costs_;
};

/// Returns the scope; named like implicit_replication().
[[nodiscard]] inline OnMissingRule on_missing_rule(const Placement& operands) {
  return OnMissingRule(operands);
}

} // namespace dtensor
