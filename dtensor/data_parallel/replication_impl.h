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
#include <dtensor/data_parallel/reduction_impl.h>
#include <dtensor/layout/mesh.h>
#include <dtensor/parallel/state/module_members_impl.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dtensor::detail {

inline constexpr const char* kReplicate = "replicate";

// SharedBuffers: buffers of a module that are broadcast from rank 0.

class SharedBuffers {
 public:
  /// Takes the current buffers of `module`, as weak references: freed buffers
  /// are skipped. `where` begins error messages and must outlive the object.
  SharedBuffers(
      const char* where,
      const DeviceMesh& mesh,
      const torch::nn::Module& module);

  /// Broadcasts all values from the first rank of the mesh: one broadcast per
  /// mesh dimension, dtype and device. Every rank must call this function. A
  /// buffer that already has these values is not written. Throws ValueError for
  /// a DTensor whose local shards differ between ranks of the mesh.
  void share() const;

 private:
  struct Buffer {
    Buffer(std::string n, const at::Tensor& t)
        : name(std::move(n)),
          tensor(t.getIntrusivePtr()) {}

    std::string name;
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
  };

  void check_layout(const std::string& name, const at::Tensor& buffer) const;

  const char* where_;
  DeviceMesh mesh_;
  std::vector<GroupPtr> groups_; // one per mesh dimension
  std::vector<Buffer> buffers_;
};

class Replication : public std::enable_shared_from_this<Replication> {
 public:
  /// Averages gradients over `group`. Frozen `parameters` take part as soon as
  /// they require grad.
  Replication(
      GroupPtr group,
      const NamedParameters& parameters,
      int64_t bucket_bytes,
      std::optional<at::ScalarType> reduce_dtype);

  /// Broadcasts the module's buffers from the first rank of `mesh` now and
  /// after each averaging. If the module is declared with DTENSOR_MODULE, also
  /// broadcasts before forward passes that record gradients.
  void share_buffers(const DeviceMesh& mesh, torch::nn::Module& module);

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
    Parameter(std::string n, const at::Tensor& t)
        : name(std::move(n)),
          weak(t.getIntrusivePtr()) {}
    /// Throws RuntimeError if the parameter was destroyed.
    at::Tensor tensor() const;

    std::string name;
    c10::weak_intrusive_ptr<c10::TensorImpl> weak;
    bool learns = false; // has required grad, so that it is in a bucket
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

  void begin_forward();
  bool is_inside() const;
  void begin_pass();
  void fill_buckets();
  at::ScalarType dtype_of_sum(at::ScalarType dtype) const;
  void accumulate_in_wider_dtype(Parameter& parameter) const;
  LocalGradient gradient_of(const Parameter& parameter) const;
  void send_complete();
  void send(Bucket& bucket);
  void finish();
  void end_pass() {
    alive_.reset();
    is_finished_ = true;
  }
  void receive(const Bucket& bucket);

  GroupPtr group_;
  std::vector<Parameter> parameters_;
  std::vector<Bucket> buckets_;
  int64_t bucket_bytes_;
  std::optional<at::ScalarType> reduce_dtype_;
  std::optional<SharedBuffers> shared_buffers_;
  bool buffers_may_differ_ = false;
  bool requires_sync_ = true;
  size_t next_ = 0; // next bucket to send
  // Graph task of the backward pass (the outermost, if nested), and an object
  // that lives until the pass ends, normally or by an error.
  int pass_ = -1;
  std::weak_ptr<void> alive_;
  bool is_finished_ = true; // false during a pass, and after one that failed
};

} // namespace dtensor::detail
