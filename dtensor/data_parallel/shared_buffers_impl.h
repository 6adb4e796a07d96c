// SPDX-License-Identifier: BSD-3-Clause
// SharedBuffers: buffers of a module that all ranks take from rank 0.
#pragma once

#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <dtensor/comm/group.h>
#include <torch/nn/module.h>

#include <vector>

namespace dtensor::detail {

class SharedBuffers {
 public:
  /// The buffers that `module` has now; those that are freed are left out.
  SharedBuffers(std::vector<GroupPtr> groups, const torch::nn::Module& module);

  /// Gives every rank the values of the first rank of the groups. One broadcast
  /// per group, dtype and device. All ranks call it. A buffer that has these
  /// values already is not written.
  void share() const;

  bool empty() const {
    return buffers_.empty();
  }

 private:
  std::vector<GroupPtr> groups_;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> buffers_;
};

} // namespace dtensor::detail
