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

/// Scope in which this thread's operators treat plain operands as DTensors in
/// layout Replicate if another operand is a DTensor. The values must be the
/// same on every rank; this is not checked.
///
/// Differentiable: a plain operand gets its full gradient, plain, on every
/// rank. The backward pass of operators called in the scope may run outside of
/// it. An operator may write to a plain tensor if its DTensors are replicated
/// and autograd does not record it. A plain input of a module with a parallel
/// style is still converted by the style (input_layouts). Scopes nest. Calls in
/// the scope use boxed kernels, which are slower.
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
