// SPDX-License-Identifier: BSD-3-Clause
// List of the operators with unboxed kernels.
#include <dtensor/ops/install/fast_slot_impl.h>

#include <dtensor/ops/install/fast_kernel_impl.h>
#include <dtensor/ops/path/decide_impl.h>
#include <dtensor/ops/path/dispatch_impl.h>
#include <dtensor/ops/path/local_call_impl.h>
#include <dtensor/ops/path/noting_errors_impl.h>

#include <ATen/Operators.h>

#include <algorithm>
#include <vector>

namespace dtensor::detail {
namespace {

// Views, products, reductions and normalizations, then pointwise operators that
// models and optimizers call.
const std::vector<FastOp>& fast_ops() {
  namespace op = at::_ops;
  static const std::vector<FastOp> ops = {
      fast_op<op::_fft_c2c>(),
      fast_op<op::_fft_c2r>(),
      fast_op<op::_fft_r2c>(),
      fast_op<op::_log_softmax>(),
      fast_op<op::_log_softmax_backward_data>(),
      fast_op<op::_softmax>(),
      fast_op<op::_softmax_backward_data>(),
      fast_op<op::_unsafe_view>(),
      fast_op<op::addmm>(),
      fast_op<op::alias>(),
      fast_op<op::amax>(),
      fast_op<op::avg_pool2d>(),
      fast_op<op::bmm>(),
      fast_op<op::cat>(),
      fast_op<op::constant_pad_nd>(),
      fast_op<op::convolution>(),
      fast_op<op::cumsum>(),
      fast_op<op::detach>(),
      fast_op<op::embedding>(),
      fast_op<op::expand>(),
      fast_op<op::group_norm>(),
      fast_op<op::layer_norm>(),
      fast_op<op::linear>(),
      fast_op<op::matmul>(),
      fast_op<op::max_pool2d_with_indices>(),
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
      fast_op<op::topk>(),
      fast_op<op::transpose_int>(),
      fast_op<op::unsqueeze>(),
      fast_op<op::upsample_bilinear2d>(),
      fast_op<op::upsample_nearest2d>(),
      fast_op<op::view>(),
      fast_op<op::_to_copy>(),
      fast_op<op::abs>(),
      fast_op<op::add_Scalar>(),
      fast_op<op::add_Tensor>(),
      fast_op<op::add__Scalar>(),
      fast_op<op::add__Tensor>(),
      fast_op<op::addcdiv>(),
      fast_op<op::addcdiv_>(),
      fast_op<op::addcmul>(),
      fast_op<op::addcmul_>(),
      fast_op<op::clone>(),
      fast_op<op::copy_>(),
      fast_op<op::cos>(),
      fast_op<op::div_Scalar>(),
      fast_op<op::div_Tensor>(),
      fast_op<op::div__Scalar>(),
      fast_op<op::div__Tensor>(),
      fast_op<op::eq_Scalar>(),
      fast_op<op::eq_Tensor>(),
      fast_op<op::exp>(),
      fast_op<op::fill__Scalar>(),
      fast_op<op::ge_Scalar>(),
      fast_op<op::gelu>(),
      fast_op<op::gelu_backward>(),
      fast_op<op::gt_Scalar>(),
      fast_op<op::le_Scalar>(),
      fast_op<op::lerp_Scalar>(),
      fast_op<op::lerp__Scalar>(),
      fast_op<op::log>(),
      fast_op<op::lt_Scalar>(),
      fast_op<op::masked_fill_Scalar>(),
      fast_op<op::masked_fill_Tensor>(),
      fast_op<op::maximum>(),
      fast_op<op::minimum>(),
      fast_op<op::mul_Scalar>(),
      fast_op<op::mul_Tensor>(),
      fast_op<op::mul__Scalar>(),
      fast_op<op::mul__Tensor>(),
      fast_op<op::ne_Scalar>(),
      fast_op<op::neg>(),
      fast_op<op::pow_Tensor_Scalar>(),
      fast_op<op::reciprocal>(),
      fast_op<op::relu>(),
      fast_op<op::relu_>(),
      fast_op<op::rsqrt>(),
      fast_op<op::rsub_Scalar>(),
      fast_op<op::sigmoid>(),
      fast_op<op::sigmoid_backward>(),
      fast_op<op::silu>(),
      fast_op<op::silu_backward>(),
      fast_op<op::sin>(),
      fast_op<op::sqrt>(),
      fast_op<op::sqrt_>(),
      fast_op<op::sub_Scalar>(),
      fast_op<op::sub_Tensor>(),
      fast_op<op::sub__Tensor>(),
      fast_op<op::tanh>(),
      fast_op<op::tanh_backward>(),
      fast_op<op::threshold_backward>(),
      fast_op<op::where_self>(),
      fast_op<op::zero_>(),
  };
  return ops;
}

} // namespace

void FastSlot::set(std::shared_ptr<const OpInfo> op_info, bool above_autograd) {
  info = op_info;
  boxed = std::make_unique<c10::KernelFunction>(
      c10::KernelFunction::makeFromBoxedFunctor(
          std::make_unique<SlotKernel>(std::move(op_info), above_autograd)));
}

void note_failure(const Decision& decision, ErrorCounts before) {
  for (const SpecPtr& spec : decision.outputs) {
    if (spec != nullptr) {
      return note_current_error(spec->mesh(), before);
    }
  }
}

void note_decision(
    const FastSlot& slot,
    const ShortKey& key,
    const torch::jit::Stack& args) {
  const OpInfo& info = *slot.info;
  auto decision = decide(info, args, key.words());
  if (!is_local_only(info, *decision)) {
    decision = nullptr;
  }
  const bool stock =
      decision != nullptr && uses_native_autograd(info, *decision, args);
  recent_decisions(info.slot).insert(key, std::move(decision), stock);
}

const FastOp* find_fast_op(const c10::OperatorName& name) {
  const auto& ops = fast_ops();
  const auto found = std::ranges::find_if(ops, [&](const FastOp& op) {
    return name.name == op.name && name.overload_name == op.overload;
  });
  return found == ops.end() ? nullptr : &*found;
}

} // namespace dtensor::detail
