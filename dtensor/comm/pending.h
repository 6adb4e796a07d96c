// SPDX-License-Identifier: BSD-3-Clause
// Pending: the handle of an asynchronous collective that this rank has entered.
// Group::all_reduce_async() and the other _async functions return one.
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
  /// Waits until every rank has entered the collective, and returns the result:
  /// the same tensor each time. A wait never enters another collective, so
  /// ranks may wait in any order or not at all. Throws the errors of the
  /// collective, and an error if a rank that it waits for has failed.
  virtual at::Tensor wait() = 0;
};
/// Shared pointer to a collective in flight.
using PendingPtr = std::shared_ptr<Pending>;

/// Returns a completed Pending that holds `result`.
DTENSOR_API PendingPtr ready(at::Tensor result);

} // namespace dtensor
