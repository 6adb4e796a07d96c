// SPDX-License-Identifier: BSD-3-Clause
// implicit_replication: plain tensors beside DTensors count as replicated.
//
//   const auto scope = implicit_replication();
//   auto scores = at::masked_fill(x, mask, -INFINITY);   // x S(1), mask plain
//
// docs/concepts/experimental.md has more.
#pragma once

#include <dtensor/api.h>

namespace dtensor {

/// While it lives, an operator of this thread that gets DTensors takes each
/// plain tensor beside them as one that every rank has, whole and alike, and
/// sees it as a DTensor in layout Replicate. Nobody checks that ranks have the
/// same. Differentiable: a plain operand gets a plain gradient, the whole one
/// on every rank, and the backward pass needs no scope for what was computed in
/// one. A plain tensor that the operator writes stays an error, and the plain
/// input of a styled module means what its style says. Nests. Operators
/// that are called in the scope go a longer way, as boxed calls.
/// Python: torch.distributed.tensor.experimental.implicit_replication, which
/// does not nest and whose backward pass has to be inside, too.
class DTENSOR_API ImplicitReplication {
 public:
  ImplicitReplication();
  ~ImplicitReplication();
  ImplicitReplication(const ImplicitReplication&) = delete;
  ImplicitReplication& operator=(const ImplicitReplication&) = delete;

 private:
  bool outer_;
};

/// As Python's context manager is called.
[[nodiscard]] inline ImplicitReplication implicit_replication() {
  return ImplicitReplication();
}

} // namespace dtensor
