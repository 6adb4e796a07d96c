// SPDX-License-Identifier: BSD-3-Clause
// Pending: a collective that this rank has entered and whose result it has yet
// to fetch. Group::all_reduce_async() and its siblings return one.
//
//   auto sum = group.all_reduce_async(std::move(x), ReduceOp::kSum);
//   at::Tensor y = work_that_needs_no_sum();
//   y += sum->wait();
//
// Python: torch.distributed.Work, AsyncCollectiveTensor.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/api.h>

#include <memory>

namespace dtensor {

class DTENSOR_API Pending {
 public:
  virtual ~Pending() = default;
  /// Returns the result, the same tensor each time, once every rank has
  /// entered the collective; the others need not wait for theirs. Never enters
  /// another collective, so ranks may wait in any order or not at all.
  /// Throws what the collective would have thrown, and what has ended a rank
  /// that it waits for.
  virtual at::Tensor wait() = 0;
};
using PendingPtr = std::shared_ptr<Pending>;

/// A result that is there already.
DTENSOR_API PendingPtr ready(at::Tensor result);

} // namespace dtensor
