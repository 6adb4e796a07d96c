// SPDX-License-Identifier: BSD-3-Clause
// List of the operators with unboxed kernels (fast_kernel_impl.h).
#pragma once

#include <ATen/core/operator_name.h>
#include <dtensor/ops/path/op_info_impl.h>
#include <torch/library.h>

#include <memory>
#include <string_view>
#include <vector>

namespace dtensor::detail {

/// Unboxed kernels of an operator. `make(info, above_autograd)` sets the slot
/// and returns the kernel.
struct FastOp {
  std::string_view name; // "aten::add"
  std::string_view overload;
  torch::CppFunction (*make)(std::shared_ptr<const OpInfo>, bool);
};

const std::vector<FastOp>& fast_pointwise_ops();
const std::vector<FastOp>& fast_other_ops();

/// Returns the kernels of operator `name`; null if it has only boxed kernels.
const FastOp* find_fast_op(const c10::OperatorName& name);

} // namespace dtensor::detail
