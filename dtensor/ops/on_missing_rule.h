// SPDX-License-Identifier: BSD-3-Clause
// on_missing_rule: operators without a sharding rule compute on the whole
// tensors instead of refusing.
//
//   const auto whole = on_missing_rule(Replicate());
//   auto t = at::trace(x);                  // x S(0): gathered, with a warning
//   whole.costs().at("aten::trace").wire_bytes;
//
// docs/concepts/experimental.md has more.
#pragma once

#include <dtensor/api.h>
#include <dtensor/layout/placement.h>

#include <cstdint>
#include <map>
#include <string>

namespace dtensor {

/// What an operator without a rule cost this rank.
struct MissingRuleCost {
  int64_t calls = 0;
  int64_t collectives = 0;
  /// Bytes that a rank sends if every collective is bandwidth-optimal.
  double wire_bytes = 0;
};

/// While it lives, an operator of this rank that has no sharding rule gets its
/// sharded operands whole: they are redistributed to Replicate, every rank
/// computes all of it, and the results are replicated; an in-place operator
/// keeps the layout of what it writes. Gradients are those of the plain
/// operator. The first call of each operator in a process warns (TORCH_WARN).
/// Operators that draw random numbers, and those that give views, refuse as
/// ever. Composite operators without a rule run whole as well, though LibTorch
/// might take them apart into operators with rules. Scopes of a rank nest, each
/// counts; a thread that works for the rank, as one of a backward pass, sees
/// them.
/// Throws ValueError for another placement than Replicate().
/// Python: has none; an operator without a strategy is an error.
class DTENSOR_API OnMissingRule {
 public:
  explicit OnMissingRule(const Placement& operands);
  ~OnMissingRule();
  OnMissingRule(const OnMissingRule&) = delete;
  OnMissingRule& operator=(const OnMissingRule&) = delete;

  /// By operator ("aten::trace"), those that ran whole because of this scope.
  const std::map<std::string, MissingRuleCost>& costs() const {
    return costs_;
  }
  /// Adds one call to this scope and those around it.
  void add(const std::string& op, const MissingRuleCost& cost);

 private:
  OnMissingRule* outer_;
  std::map<std::string, MissingRuleCost> costs_;
};

/// The scope, named as the others are.
[[nodiscard]] inline OnMissingRule on_missing_rule(const Placement& operands) {
  return OnMissingRule(operands);
}

} // namespace dtensor
