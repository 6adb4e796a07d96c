// SPDX-License-Identifier: BSD-3-Clause
// Replication: the gradient buckets of a replicated model, and their
// all-reduces in flight during a backward pass.
//
// Autograd accumulates gradients in `.grad` as usual. At the end of the
// backward pass `.grad` is replaced by its average. Values from earlier passes
// are included: they are averages already, or still to be averaged. All ranks
// send buckets in the same order, independent of the order in which gradients
// arrive.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <dtensor/comm/group.h>
#include <dtensor/data_parallel/local_gradient_impl.h>
#include <dtensor/data_parallel/shared_buffers_impl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace dtensor::detail {

class Replication : public std::enable_shared_from_this<Replication> {
 public:
  Replication(
      GroupPtr group,
      const std::vector<at::Tensor>& parameters,
      int64_t bucket_bytes,
      std::optional<at::ScalarType> reduce_dtype);

  /// Buffers that all ranks take from the first one after each average.
  void share_buffers(SharedBuffers buffers);
  /// The module begins a forward that records gradients.
  void begin_forward();

  /// Parameter `i` has its gradient of this pass. Returns whether it becomes
  /// an average at the end of it.
  bool take(size_t i);

  void set_requires_gradient_sync(bool requires_sync) {
    requires_sync_ = requires_sync;
  }

 private:
  // The parameter owns it, through the hook on its gradient.
  struct Parameter {
    explicit Parameter(const at::Tensor& t) : tensor(t.getIntrusivePtr()) {}

    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    size_t bucket = 0;
    bool is_counted = false; // has a gradient newer than its last average
    bool is_changed = false; // accumulated in a wider dtype of averages
    LocalGradient waiting;   // in the dtype of averages, if that is wider
  };
  struct Bucket {
    std::vector<size_t> parameters;
    int64_t missing = 0; // gradients of this pass
    PendingPtr averages;
  };

  bool is_inside() const;
  void begin_pass();
  at::ScalarType dtype_of_sum(at::ScalarType dtype) const;
  void keep_wide(Parameter& parameter) const;
  LocalGradient gradient_of(const Parameter& parameter) const;
  void send_complete();
  void send(Bucket& bucket);
  void finish();
  void receive(const Bucket& bucket);

  GroupPtr group_;
  std::vector<Parameter> parameters_;
  std::vector<Bucket> buckets_;
  std::optional<at::ScalarType> reduce_dtype_;
  std::optional<SharedBuffers> shared_buffers_;
  bool buffers_may_differ_ = false;
  bool requires_sync_ = true;
  size_t next_ = 0; // bucket to send
  // The backward pass, of those inside of one another the first that came by,
  // and what lives until it is over, however it ends.
  int pass_ = -1;
  std::weak_ptr<void> alive_;
};

} // namespace dtensor::detail
