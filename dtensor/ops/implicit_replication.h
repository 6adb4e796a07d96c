// SPDX-License-Identifier: BSD-3-Clause
// implicit_replication: treats plain tensors beside DTensors as replicated.
//
//   const auto scope = implicit_replication();
//   auto scores = at::masked_fill(x, mask, -INFINITY);   // x S(1), mask plain
//
// docs/concepts/experimental.md has more.
#pragma once

#include <dtensor/api.h>

namespace dtensor {

/// Scope in which operators of this thread that get DTensors treat each plain
/// tensor beside them as a DTensor in layout Replicate. The values must be the
/// same on every rank; no check is made.
///
/// Differentiable: a plain operand gets a plain gradient, the full one on every
/// rank. The backward pass of operators called in the scope may run outside of
/// it. A plain tensor that the operator writes stays an error. The plain input
/// of a styled module keeps the meaning that the style gives it. Scopes nest.
/// Operators called in the scope take the boxed path, which is slower.
///
/// Python: torch.distributed.tensor.experimental.implicit_replication, which
/// does not nest and requires the backward pass inside the scope, too.
class DTENSOR_API ImplicitReplication {
 public:
  ImplicitReplication();
  ~ImplicitReplication();
  ImplicitReplication(const ImplicitReplication&) = delete;
  ImplicitReplication& operator=(const ImplicitReplication&) = delete;

 private:
  bool outer_;
};

/// Returns the scope; named like Python's context manager.
[[nodiscard]] inline ImplicitReplication implicit_replication() {
  return ImplicitReplication();
}

} // namespace dtensor
