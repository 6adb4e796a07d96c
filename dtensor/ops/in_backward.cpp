// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/in_backward_impl.h>

#include <torch/csrc/autograd/node.h>

namespace dtensor::detail {

bool in_backward() {
  return torch::autograd::get_current_node() != nullptr;
}

} // namespace dtensor::detail
