// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/awaited_bias_impl.h>

#include <dtensor/comm/rank/rank_local_impl.h>
#include <dtensor/parallel/layout_boundary_impl.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/meta_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace dtensor::detail {
namespace {

// Last output that a bias addition may follow, and its inputs.
struct PendingOutput {
  c10::weak_intrusive_ptr<c10::TensorImpl> output =
      c10::weak_intrusive_ptr<c10::TensorImpl>(
          c10::intrusive_ptr<c10::TensorImpl>());
  at::Tensor input;
  at::Tensor product;
  at::Tensor bias; // included in output; undefined: none
};

RankLocal<PendingOutput> unfinished;

// Adds the bias in the layout of the product's last dimension. If the product
// is Partial, the bias is too, so that it is added once.
at::Tensor with_bias(const at::Tensor& product, const at::Tensor& bias) {
  const auto& made = spec_of(product);
  const auto& given = spec_of(bias);
  Placements placements;
  for (const auto& p : made->placements()) {
    placements.push_back(
        p.is_partial()                                       ? p
            : p.is_sharded() && p.dim() == product.dim() - 1 ? p.with_dim(0)
                                                             : Replicate());
  }
  const auto added =
      redistribute_autograd(bias, given->with_placements(placements));
  return (product + added).to(product.scalar_type());
}

// Overwrites `output` with the values and the autograd history of `fresh`,
// which has the same layout.
void replace(const at::Tensor& output, const at::Tensor& fresh) {
  const auto local = [](const at::Tensor& t) {
    return (is_dtensor(t) ? local_of(t) : t).variable_data();
  };
  {
    const c10::NoGradGuard no_grad;
    local(output).copy_(local(fresh)); // without a new version
  }
  if (fresh.requires_grad()) {
    torch::autograd::impl::set_gradient_edge(
        output, torch::autograd::impl::gradient_edge(fresh));
  }
}

} // namespace

at::Tensor PendingBias::finish(
    const LayoutBoundary& boundary,
    const at::Tensor& input,
    const at::Tensor& product) {
  const auto known = bias_.lock();
  const auto bias = known == nullptr ? at::Tensor() : at::Tensor(known);
  auto output = boundary.finish_output(
      input, bias.defined() ? with_bias(product, bias) : product);
  auto& last = unfinished.get();
  last.output = Weak(output.getIntrusivePtr());
  last.input = input;
  last.product = product;
  last.bias = bias;
  return output;
}

bool add_pending_bias(
    const LayoutBoundary& boundary,
    const at::Tensor& output,
    const at::Tensor& bias) {
  if (unfinished.get().output.lock() != output.getIntrusivePtr()) {
    return false;
  }
  const auto last = std::exchange(unfinished.get(), PendingOutput());
  if (!last.bias.is_same(bias)) {
    replace(
        output,
        boundary.finish_output(last.input, with_bias(last.product, bias)));
    boundary.expect_bias(bias);
  }
  return true;
}

} // namespace dtensor::detail
