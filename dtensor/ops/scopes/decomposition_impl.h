// SPDX-License-Identifier: BSD-3-Clause
// The composite operator whose decomposition is running, for errors inside it.
#pragma once

#include <dtensor/ops/path/op_info_impl.h>

#include <string>
#include <vector>

namespace dtensor::detail {

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

/// Returns the outermost scope of this rank; null outside of such scopes.
const DecompositionScope* current_decomposition();

} // namespace dtensor::detail
