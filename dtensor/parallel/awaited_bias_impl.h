// SPDX-License-Identifier: BSD-3-Clause
// AwaitedBias: the bias that torch::nn::Linear adds after its product.
//
// For an input of two dimensions the module calls addmm. For any other it calls
// matmul, and then `output += bias`. An output_fn gets the output with the bias
// in both cases: the bias is added within the matmul, and the addition that
// follows finds it done. The bias is that of the last call. Where another one
// follows (of a clone, or of a module that shares the weight), the output is
// made again of the product.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

namespace dtensor::detail {

class LayoutBoundary;

/// Belongs to a boundary, and is used by the rank of its mesh alone.
class AwaitedBias {
 public:
  /// Notes the bias of a module, to be expected after its next product.
  void expect(const at::Tensor& bias) {
    bias_ = Weak(bias.getIntrusivePtr());
    is_expected_ = true;
  }
  bool is_expected() const {
    return is_expected_;
  }

  /// The module's output of `product`, a DTensor without the bias, which the
  /// operator made of `input`.
  at::Tensor finish(
      const LayoutBoundary& boundary,
      const at::Tensor& input,
      const at::Tensor& product);

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl>;
  Weak bias_ = Weak(c10::intrusive_ptr<c10::TensorImpl>());
  bool is_expected_ = false;
};

/// `output += bias`, where `output` is the last that AwaitedBias::finish made
/// on this rank. False, and nothing done, for any other tensor.
bool add_awaited_bias(
    const LayoutBoundary& boundary,
    const at::Tensor& output,
    const at::Tensor& bias);

} // namespace dtensor::detail
