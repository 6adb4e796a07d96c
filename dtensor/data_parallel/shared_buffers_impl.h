// SPDX-License-Identifier: BSD-3-Clause
// SharedBuffers: buffers of a module that are broadcast from rank 0.
#pragma once

#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <dtensor/comm/group.h>
#include <torch/nn/module.h>

#include <vector>

namespace dtensor::detail {

class SharedBuffers {
 public:
  /// Takes the current buffers of `module`, as weak references: freed buffers
  /// are skipped.
  SharedBuffers(std::vector<GroupPtr> groups, const torch::nn::Module& module);

  /// Broadcasts all values from the first rank of the groups: one broadcast per
  /// group, dtype and device. Every rank must call it. A buffer whose values
  /// are equal already is not written.
  void share() const;

  bool empty() const {
    return buffers_.empty();
  }

 private:
  std::vector<GroupPtr> groups_;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> buffers_;
};

} // namespace dtensor::detail
