// SPDX-License-Identifier: BSD-3-Clause
// Replication: the gradient buckets of a replicated model, and their
// all-reduces in flight during a backward pass.
//
// Autograd accumulates gradients in `.grad` as usual. At the end of the
// backward pass, each `.grad` is replaced by its average over the ranks. Values
// from earlier passes are part of `.grad`: either averages, or values that are
// still to be averaged. All ranks send buckets in the same order, independent
// of the order in which gradients arrive.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <dtensor/comm/group.h>
#include <dtensor/data_parallel/local_gradient_impl.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace dtensor::detail {

// SharedBuffers: buffers of a module that are broadcast from rank 0.

class SharedBuffers {
 public:
  /// Takes the current buffers of `module`, as weak references: freed buffers
  /// are skipped.
  SharedBuffers(std::vector<GroupPtr> groups, const torch::nn::Module& module);

  /// Broadcasts all values from the first rank of the groups: one broadcast per
  /// group, dtype and device. Every rank must call this function. A buffer that
  /// already has these values is not written.
  void share() const;

  bool empty() const {
    return buffers_.empty();
  }

 private:
  std::vector<GroupPtr> groups_;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> buffers_;
};

class Replication : public std::enable_shared_from_this<Replication> {
 public:
  Replication(
      GroupPtr group,
      const std::vector<at::Tensor>& parameters,
      int64_t bucket_bytes,
      std::optional<at::ScalarType> reduce_dtype);

  /// Broadcasts `buffers` from the first rank now and after each averaging.
  void share_buffers(SharedBuffers buffers);
  /// Starts a forward pass of the module that records gradients.
  void begin_forward();

  /// Takes the gradient of parameter `i` in this pass. Returns true if the
  /// gradient becomes an average at the end of the pass.
  bool take_gradient(size_t i);

  void set_requires_gradient_sync(bool requires_sync) {
    requires_sync_ = requires_sync;
  }

 private:
  // Parameter of the model. The parameter owns the Replication through the hook
  // on its gradient.
  struct Parameter {
    explicit Parameter(const at::Tensor& t) : tensor(t.getIntrusivePtr()) {}

    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    size_t bucket = 0;
    bool is_counted = false; // no longer in Bucket::missing
    bool is_changed = false; // has a gradient newer than its last average
    LocalGradient waiting;   // accumulated in a wider dtype of averages
  };
  struct Bucket {
    std::vector<size_t> parameters;
    int64_t missing = 0; // gradients still expected in this pass
    PendingPtr averages;
  };

  bool is_inside() const;
  void begin_pass();
  at::ScalarType dtype_of_sum(at::ScalarType dtype) const;
  void accumulate_in_wider_dtype(Parameter& parameter) const;
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
  size_t next_ = 0; // next bucket to send
  // Graph task of the backward pass (the outermost, if nested), and an object
  // that lives until the pass ends, normally or by an error.
  int pass_ = -1;
  std::weak_ptr<void> alive_;
};

} // namespace dtensor::detail
