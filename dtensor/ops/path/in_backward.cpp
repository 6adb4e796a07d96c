// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/path/in_backward_impl.h>

#include <dtensor/torch_nodes_impl.h>
#include <torch/csrc/autograd/functions/tensor.h>

#include <string_view>
#include <typeinfo>

namespace dtensor::detail {

bool in_backward() {
  return torch::autograd::get_current_node() != nullptr;
}

bool in_view_backward() {
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr) {
    return false;
  }
  // Compared by name, because the header of AsStridedBackward0 takes seconds to
  // compile.
  const torch::autograd::Node& made = *node;
  const std::string_view name = typeid(made).name();
  return dynamic_cast<const torch::autograd::CopySlices*>(node.get()) !=
      nullptr ||
      name.find("AsStridedBackward0") != std::string_view::npos;
}

} // namespace dtensor::detail
