// SPDX-License-Identifier: BSD-3-Clause
// Unboxed kernels of views, products, reductions and normalizations.
#include <dtensor/ops/fast_ops_impl.h>

#include <dtensor/ops/fast_kernel_impl.h>
#include <dtensor/tensor/memory_order_impl.h>

#include <ATen/ops/_log_softmax_backward_data_ops.h>
#include <ATen/ops/_log_softmax_ops.h>
#include <ATen/ops/_softmax_backward_data_ops.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/_unsafe_view_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/alias_ops.h>
#include <ATen/ops/amax_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/detach_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/expand_ops.h>
#include <ATen/ops/layer_norm_ops.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/matmul_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/permute_ops.h>
#include <ATen/ops/scaled_dot_product_attention_ops.h>
#include <ATen/ops/select_ops.h>
#include <ATen/ops/slice_ops.h>
#include <ATen/ops/squeeze_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/t_ops.h>
#include <ATen/ops/transpose_ops.h>
#include <ATen/ops/unsqueeze_ops.h>
#include <ATen/ops/view_ops.h>

namespace dtensor::detail {

template <>
struct LocalResult<at::_ops::scaled_dot_product_attention> {
  static at::Tensor finish(at::Tensor local, const SpecPtr& spec) {
    return in_memory_order(std::move(local), spec->strides());
  }
};

const std::vector<FastOp>& fast_other_ops() {
  namespace op = at::_ops;
  static const std::vector<FastOp> ops = {
      fast_op<op::_log_softmax>(),
      fast_op<op::_log_softmax_backward_data>(),
      fast_op<op::_softmax>(),
      fast_op<op::_softmax_backward_data>(),
      fast_op<op::_unsafe_view>(),
      fast_op<op::addmm>(),
      fast_op<op::alias>(),
      fast_op<op::amax>(),
      fast_op<op::bmm>(),
      fast_op<op::cat>(),
      fast_op<op::detach>(),
      fast_op<op::embedding>(),
      fast_op<op::expand>(),
      fast_op<op::layer_norm>(),
      fast_op<op::linear>(),
      fast_op<op::matmul>(),
      fast_op<op::mm>(),
      fast_op<op::native_layer_norm>(),
      fast_op<op::native_layer_norm_backward>(),
      fast_op<op::permute>(),
      fast_op<op::scaled_dot_product_attention>(),
      fast_op<op::select_int>(),
      fast_op<op::slice_Tensor>(),
      fast_op<op::squeeze_dim>(),
      fast_op<op::sum>(),
      fast_op<op::sum_dim_IntList>(),
      fast_op<op::t>(),
      fast_op<op::transpose_int>(),
      fast_op<op::unsqueeze>(),
      fast_op<op::view>(),
  };
  return ops;
}

} // namespace dtensor::detail
