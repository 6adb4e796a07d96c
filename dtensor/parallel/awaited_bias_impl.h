// SPDX-License-Identifier: BSD-3-Clause
// PendingBias: the bias that torch::nn::Linear adds after its product.
//
// For a 2-D input the module calls addmm. For any other input it calls matmul,
// and then `output += bias`. An output_fn must get the output including the
// bias in both cases. Therefore the bias is added within the matmul, and the
// addition that follows is skipped. The expected bias is that of the last call
// of the module. If a different bias follows (of a clone, or of a module that
// shares the weight), the output is recomputed from the product.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

namespace dtensor::detail {

class LayoutBoundary;

/// State of a boundary, used only by the rank that owns its mesh.
class PendingBias {
 public:
  /// Expects `bias` to be added after the module's next product.
  void expect(const at::Tensor& bias) {
    bias_ = Weak(bias.getIntrusivePtr());
    is_expected_ = true;
  }
  bool is_expected() const {
    return is_expected_;
  }

  /// Returns the module's output: adds the bias to `product`, a DTensor that
  /// the operator computed from `input`, and applies output_fn.
  at::Tensor finish(
      const LayoutBoundary& boundary,
      const at::Tensor& input,
      const at::Tensor& product);

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl>;
  Weak bias_ = Weak(c10::intrusive_ptr<c10::TensorImpl>());
  bool is_expected_ = false;
};

/// Implements `output += bias` if `output` is the last result of
/// PendingBias::finish on this rank. Otherwise does nothing and returns false.
bool add_pending_bias(
    const LayoutBoundary& boundary,
    const at::Tensor& output,
    const at::Tensor& bias);

} // namespace dtensor::detail
