// SPDX-License-Identifier: BSD-3-Clause
// InFlight: a collective that a backend has begun, and its result.
//
//   InFlight sum = backend.submit({.kind = CollectiveKind::kAllReduce, ...});
//   return std::move(sum.wait().tensor);
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/api.h>
#include <dtensor/comm/pending.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace dtensor {

/// Result of a collective on one rank. Most collectives have one tensor. An
/// all_to_all of one tensor per member, the root of a gather, and
/// all_gather_strings have one tensor per member. A send and a barrier have
/// none.
struct CollectiveResult {
  CollectiveResult() = default;
  // Implicit, because a backend returns one tensor or a list.
  CollectiveResult(at::Tensor one) : tensor(std::move(one)) {}
  CollectiveResult(std::vector<at::Tensor> many) : tensors(std::move(many)) {}

  at::Tensor tensor;
  std::vector<at::Tensor> tensors;
};

/// A transfer of data by a transport that begins it and completes it later.
class DTENSOR_API Transfer {
 public:
  virtual ~Transfer() = default;
  /// Returns once the data have arrived.
  virtual void wait() = 0;
  /// Called when this rank goes on without waiting. Peers may need its data
  /// before wait() is called, so a transport that moves data only inside wait()
  /// must move them in another thread from now on.
  virtual void progress_in_background() {}
};

class DTENSOR_API InFlight {
 public:
  /// Function that waits for the result.
  using Wait = std::function<CollectiveResult()>;

  // Implicit: a completed collective, with its result.
  InFlight(CollectiveResult result) : result_(std::move(result)) {}
  InFlight(at::Tensor result) : result_(std::move(result)) {}
  InFlight(std::vector<at::Tensor> results) : result_(std::move(results)) {}
  /// A collective whose data `transfer` moves (null: nothing to wait for).
  /// `finish` makes the result once they have arrived.
  InFlight(std::shared_ptr<Transfer> transfer, Wait finish);

  /// Returns true if the result is here, so that no wait is needed.
  bool is_complete() const {
    return rest_ == nullptr;
  }
  /// Waits and returns the result, which the caller may move from.
  CollectiveResult& wait() {
    if (rest_ != nullptr) {
      complete();
    }
    return result_;
  }
  /// Calls Transfer::progress_in_background(), because this rank goes on
  /// without waiting.
  void progress_in_background() const {
    if (rest_ != nullptr && rest_->transfer != nullptr) {
      rest_->transfer->progress_in_background();
    }
  }

  /// Returns this collective with `finish` applied to its tensor: at once if it
  /// is complete, else after the wait.
  template <typename Finish>
  InFlight then(Finish finish) && {
    if (is_complete()) {
      return InFlight(CollectiveResult(finish(std::move(result_.tensor))));
    }
    return std::move(*this).around(
        [finish = std::move(finish)](const Wait& wait) {
          return CollectiveResult(finish(wait().tensor));
        });
  }
  /// Returns this collective with its tensor copied to `out`, if defined.
  InFlight into(const at::Tensor& out) &&;
  /// Returns this collective with its wait replaced by a call of `waiting`,
  /// whose argument is the replaced wait. A completed collective has no wait
  /// and is returned unchanged.
  InFlight around(std::function<CollectiveResult(const Wait&)> waiting) &&;

 private:
  struct Rest {
    std::shared_ptr<Transfer> transfer;
    Wait wait;
  };

  void complete();

  CollectiveResult result_;
  std::unique_ptr<Rest> rest_; // null: complete
};

/// Returns a Pending that waits for `collective`.
DTENSOR_API PendingPtr pending(InFlight collective);

} // namespace dtensor
