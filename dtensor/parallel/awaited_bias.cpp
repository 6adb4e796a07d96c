// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/awaited_bias_impl.h>

#include <dtensor/comm/rank_local_impl.h>
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

// An output that a bias may follow, and what it was made of.
struct Unfinished {
  c10::weak_intrusive_ptr<c10::TensorImpl> output =
      c10::weak_intrusive_ptr<c10::TensorImpl>(
          c10::intrusive_ptr<c10::TensorImpl>());
  at::Tensor input;
  at::Tensor product;
  at::Tensor bias; // that it has; undefined: none
};

RankLocal<Unfinished> unfinished;

// The bias goes with the columns of the product; where that is a sum over
// ranks, so is the bias, which is then added once.
at::Tensor with_bias(const at::Tensor& product, const at::Tensor& bias) {
  const auto& made = spec_of(product);
  const auto& given = spec_of(bias);
  Placements placements;
  for (const auto& p : made->placements()) {
    placements.push_back(
        p.is_partial()                                 ? p
            : p.cuts() && p.dim() == product.dim() - 1 ? p.with_dim(0)
                                                       : Replicate());
  }
  const auto added =
      redistribute_autograd(bias, given->with_placements(placements));
  return (product + added).to(product.scalar_type());
}

// Makes `output` what `fresh` is, of the same layout, with its history.
void replace(const at::Tensor& output, const at::Tensor& fresh) {
  const auto local = [](const at::Tensor& t) {
    return (is_dtensor(t) ? local_of(t) : t).variable_data();
  };
  {
    const c10::NoGradGuard no_grad;
    local(output).copy_(local(fresh)); // no version counts it
  }
  if (fresh.requires_grad()) {
    torch::autograd::impl::set_gradient_edge(
        output, torch::autograd::impl::gradient_edge(fresh));
  }
}

} // namespace

at::Tensor AwaitedBias::finish(
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

bool add_awaited_bias(
    const LayoutBoundary& boundary,
    const at::Tensor& output,
    const at::Tensor& bias) {
  if (unfinished.get().output.lock() != output.getIntrusivePtr()) {
    return false;
  }
  const auto last = std::exchange(unfinished.get(), Unfinished());
  if (!last.bias.is_same(bias)) {
    replace(
        output,
        boundary.finish_output(last.input, with_bias(last.product, bias)));
    boundary.expect_bias(bias);
  }
  return true;
}

} // namespace dtensor::detail
