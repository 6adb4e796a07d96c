// SPDX-License-Identifier: BSD-3-Clause
// Nodes of the autograd graph. LibTorch holds nodes by intrusive pointers since
// 2.13, and by shared pointers before.
#pragma once

#if __has_include(<torch/csrc/autograd/node.h>)
#include <torch/csrc/autograd/node.h>
#else
#include <torch/csrc/autograd/function.h>
#endif

#include <memory>
#include <utility>

namespace dtensor::detail {

using torch::autograd::Node;

#if __has_include(<torch/csrc/autograd/node.h>)

template <class T>
using NodeHolder = c10::intrusive_ptr<T>;
using WeakNode = c10::weak_intrusive_ptr<Node>;

template <class T, class... Args>
NodeHolder<T> make_node(Args&&... args) {
  return c10::make_intrusive<T>(std::forward<Args>(args)...);
}

#else

template <class T>
using NodeHolder = std::shared_ptr<T>;
using WeakNode = std::weak_ptr<Node>;

// Deep graphs are deleted without recursion.
template <class T, class... Args>
NodeHolder<T> make_node(Args&&... args) {
  return {new T(std::forward<Args>(args)...), torch::autograd::deleteNode};
}

#endif

using NodePtr = NodeHolder<Node>;

} // namespace dtensor::detail
