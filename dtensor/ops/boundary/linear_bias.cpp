// SPDX-License-Identifier: BSD-3-Clause
// The bias of a styled Linear. For a 2-D input torch::nn::Linear calls addmm,
// which adds the bias. For any other input it calls matmul, and then `output +=
// bias`. The bias has the boundary of the weight, so the kernel of add_
// (ops/kernels/linalg.cpp) finds the boundary and calls Boundary::add_bias().
//
// Usually the output is a plain local tensor, and add_bias() adds this rank's
// shard of the bias.
//
// An output_fn must get the output including the bias in both cases. Therefore
// the bias is added within the matmul, and the addition that follows is
// skipped. The expected bias is the bias of the module's last call. If a
// different bias follows (of a clone, or of a module that shares the weight),
// the output is recomputed from the product.
#include <dtensor/ops/boundary/boundary_impl.h>

#include <dtensor/comm/observer.h>
#include <dtensor/comm/rank/rank_local_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/layout_steps_impl.h>
#include <dtensor/tensor/meta_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <string_view>
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

// Returns the bias layout that matches the output's last dimension. For a
// Partial output the bias is Partial too, so that it is added once.
Placement bias_layout(const Placement& output, int64_t output_dim) {
  if (output.is_partial()) {
    return output;
  }
  return output.is_sharded() && output.dim() == output_dim - 1
      ? output.with_dim(0)
      : Replicate();
}

// Adds the bias in the layout of the product's last dimension.
at::Tensor with_bias(const at::Tensor& product, const at::Tensor& bias) {
  const auto& made = spec_of(product);
  Placements placements;
  for (const auto& p : made->placements()) {
    placements.push_back(bias_layout(p, product.dim()));
  }
  const auto added =
      redistribute_autograd(bias, spec_of(bias)->with_placements(placements));
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
    local(output).copy_(local(fresh)); // without incrementing the version
  }
  if (fresh.requires_grad()) {
    torch::autograd::impl::set_gradient_edge(
        output, torch::autograd::impl::gradient_edge(fresh));
  }
}

// Checks that `output` ends in the sizes of the local bias. Otherwise a local
// bias of one element would be added to all features.
void check_bias_fits(
    const at::Tensor& bias,
    const at::Tensor& output,
    std::string_view module) {
  const auto extra = output.dim() - bias.dim();
  DTENSOR_CHECK_VALUE(
      extra >= 0 &&
          output.sizes().slice(static_cast<size_t>(extra)) == bias.sizes(),
      "[boundary] the bias of {} is {} on this rank, but is added to a plain "
      "tensor that is {}. Add the bias to the output of the module, or add its "
      "full_tensor().",
      describe_module(module),
      shape_text(bias.scalar_type(), bias.sizes()),
      shape_text(output.scalar_type(), output.sizes()));
}

} // namespace

void Boundary::expect_bias(const at::Tensor& bias) const {
  if (layouts_.output_fn != nullptr) {
    expected_bias_ = WeakTensor(bias.getIntrusivePtr());
  }
}

at::Tensor Boundary::finish_product(
    const at::Tensor& input,
    const at::Tensor& product) const {
  if (!expected_bias_) {
    return finish_output(input, product);
  }
  const auto known = expected_bias_->lock();
  const auto bias = known == nullptr ? at::Tensor() : at::Tensor(known);
  auto output =
      finish_output(input, bias.defined() ? with_bias(product, bias) : product);
  auto& last = unfinished.get();
  last.output = WeakTensor(output.getIntrusivePtr());
  last.input = input;
  last.product = product;
  last.bias = bias;
  return output;
}

// Handles `output += bias` if `output` is the last result of finish_product()
// on this rank.
bool Boundary::add_pending_bias(
    const at::Tensor& output,
    const at::Tensor& bias) const {
  if (layouts_.output_fn == nullptr ||
      unfinished.get().output.lock() != output.getIntrusivePtr()) {
    return false;
  }
  const auto last = std::exchange(unfinished.get(), PendingOutput());
  if (!last.bias.is_same(bias)) {
    replace(output, finish_output(last.input, with_bias(last.product, bias)));
    expect_bias(bias);
  }
  return true;
}

bool Boundary::add_bias(
    at::Tensor& output,
    const at::Tensor& bias,
    const at::Scalar& alpha) const {
  if (alpha.equal(1) && add_pending_bias(output, bias)) {
    return true;
  }
  if (is_dtensor(output)) {
    return false;
  }
  const ModuleScope scope(module_name_);
  const auto local = local_bias(bias, output);
  if (where().mesh.contains_this_rank()) {
    check_bias_fits(local, output, module_name_);
  }
  output.add_(local, alpha);
  return true;
}

Boundary::BiasLayouts Boundary::layouts_of_bias(
    const SpecPtr& given,
    int64_t output_dim) const {
  const auto output = normalize_placements(
      where().mesh, {layouts_.output.value()}, output_dim, "boundary")[0];
  const auto layout = bias_layout(output, output_dim);
  // Every rank adds the bias to its local output. If outputs are sharded and
  // the bias is replicated, the bias gradient is Partial.
  const bool sums = output.is_sharded() && layout.is_replicate();
  const auto added = given->with_placements({layout}, "boundary");
  const auto grad = sums    ? Placement(Partial(ReduceOp::kSum))
      : layout.is_partial() ? Placement(Replicate())
                            : layout;
  return {given, output_dim, added, gradient_spec(*added, grad)};
}

// Returns the local bias to add to a plain local output, which has the local
// shape. Differentiable.
at::Tensor Boundary::local_bias(
    const at::Tensor& bias,
    const at::Tensor& output) const {
  if (!where().mesh.contains_this_rank()) {
    return to_local_autograd(bias);
  }
  if (layouts_.shared.users > 0) {
    return shared_bias(bias, layouts_.shared);
  }
  const auto& given = spec_of(bias);
  if (bias_.given != given || bias_.output_dim != output.dim()) {
    bias_ = layouts_of_bias(given, output.dim());
  }
  return convert_single_input(conversion_to(bias, bias_.added, bias_.gradient));
}

} // namespace dtensor::detail
