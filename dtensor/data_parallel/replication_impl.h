// SPDX-License-Identifier: BSD-3-Clause
// Replication: which gradients of a model are averaged together, and what is
// under way of them in a backward pass.
//
// A parameter's gradient is taken before it is accumulated, and comes back as
// an average at the end of the pass. Buckets are sent in one order on all
// ranks, whatever order gradients come in.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <dtensor/comm/group.h>
#include <dtensor/data_parallel/local_gradient_impl.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace dtensor::detail {

class Replication : public std::enable_shared_from_this<Replication> {
 public:
  Replication(
      GroupPtr group,
      const std::vector<at::Tensor>& parameters,
      int64_t bucket_bytes);

  /// The gradient of parameter `i` in this pass; returns what is to be
  /// accumulated now, which may be undefined.
  at::Tensor take(size_t i, const at::Tensor& grad);

  void set_requires_gradient_sync(bool requires_sync) {
    requires_sync_ = requires_sync;
  }

 private:
  // The parameter owns it, through the hook on its gradient.
  struct Parameter {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    size_t bucket = 0;
    LocalGradient gradient;   // of this pass
    bool is_unsummed = false; // its grad is this rank's alone
  };
  struct Bucket {
    std::vector<size_t> parameters;
    int64_t missing = 0; // gradients of this pass
    PendingPtr averages;
  };

  bool is_inside() const;
  void begin_pass();
  void add_unsummed(Parameter& parameter, const at::Tensor& tensor) const;
  void send_complete();
  void send(Bucket& bucket);
  void finish();
  void receive(const Bucket& bucket);
  static void accumulate(
      const at::Tensor& parameter,
      const at::Tensor& average,
      bool replaces);

  GroupPtr group_;
  std::vector<Parameter> parameters_;
  std::vector<Bucket> buckets_;
  bool requires_sync_ = true;
  size_t next_ = 0; // bucket to send
  // The backward pass, of those inside of one another the first that came by,
  // and what lives until it is over, however it ends.
  int pass_ = -1;
  std::weak_ptr<void> alive_;
};

} // namespace dtensor::detail
