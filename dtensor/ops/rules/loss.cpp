// SPDX-License-Identifier: BSD-3-Clause
// Losses. Elementwise losses are computed on the shards of their inputs. A mean
// divides the local sum by the global number of elements, so that uneven shards
// are exact.
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/pointwise_impl.h>
#include <dtensor/ops/rules/shapes_impl.h>

#include <ATen/ExpandUtils.h>
#include <ATen/core/Reduction.h>

#include <algorithm>
#include <vector>

namespace dtensor {
namespace {

using detail::all_alike;
using detail::dense;
using detail::keep_layouts;
using detail::operand_shard;

bool keeps_shape(const OpCall& call) {
  return call.int_arg("reduction") == at::Reduction::None;
}

// Returns true if `input` broadcasts to the shape of `self`.
bool fits(const OpInput& input, const OpInput& self) {
  return at::is_expandable_to(input.sizes(), self.sizes());
}

// Returns true if all operands broadcast to the shape of `self`.
bool self_is_largest(const OpCall& call, size_t self) {
  return std::all_of(
      call.inputs.begin() + static_cast<std::ptrdiff_t>(self),
      call.inputs.end(),
      [&](const OpInput& input) { return fits(input, call.inputs[self]); });
}

// Returns the strategies of (self, target, weights...) -> loss.
Strategies elementwise(const OpCall& call, int64_t) {
  Strategies all;
  if (!self_is_largest(call, 0)) {
    return all;
  }
  for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
    Strategy s;
    for (const auto& input : call.inputs) {
      s.inputs.push_back(
          operand_shard(input.sizes(), call.inputs[0].sizes(), d));
    }
    s.outputs = {keeps_shape(call) ? Shard(d) : Partial(ReduceOp::kSum)};
    all.push_back(std::move(s));
  }
  return all;
}

Sizes broadcast_sizes(const OpCall& call) {
  std::vector<int64_t> sizes;
  for (const auto& input : call.inputs) {
    sizes = at::infer_size(sizes, input.sizes());
  }
  return {sizes.begin(), sizes.end()};
}

// Returns the dtype of a loss, from the meta kernel because each loss promotes
// dtypes differently.
at::ScalarType loss_dtype(const OpCall& call) {
  return detail::pointwise_meta(call)[0].dtype;
}

std::vector<OutputMeta> elementwise_meta(const OpCall& call) {
  return {dense(
      keeps_shape(call) ? broadcast_sizes(call) : Sizes{}, loss_dtype(call))};
}

// Returns the strategies of (grad_output, self, target, weight...) -> gradient
// of self. For the second derivative of a reduced loss, grad_output has the
// shape of self.
Strategies elementwise_backward(const OpCall& call, int64_t) {
  Strategies all;
  if (!self_is_largest(call, 1) || !fits(call.inputs[0], call.inputs[1])) {
    return all;
  }
  for (int64_t d = 0; d < call.inputs[1].dim(); ++d) {
    Strategy s;
    for (const auto& input : call.inputs) {
      s.inputs.push_back(
          operand_shard(input.sizes(), call.inputs[1].sizes(), d));
    }
    s.outputs = {Shard(d)};
    all.push_back(std::move(s));
  }
  return all;
}

std::vector<OutputMeta> elementwise_backward_meta(const OpCall& call) {
  return {dense(broadcast_sizes(call), loss_dtype(call))};
}

// nll_loss: samples may be sharded, the class dimension is unsharded.

// Maps dimension `d` of the logits to a dimension of the target.
int64_t target_dim(int64_t d) {
  return d == 0 ? 0 : d - 1;
}

// Returns the strategies of (self, target, weight?) -> loss, total weight. For
// a mean, the local kernel reduces the sums over ranks.
Strategies nll_forward(const OpCall& call, int64_t) {
  Strategies all;
  const auto dim = call.inputs[0].dim();
  for (int64_t d = 0; dim > 1 && d < dim; ++d) {
    if (d == 1) {
      continue;
    }
    auto s = all_alike(call, Replicate());
    s.inputs[0] = Shard(d);
    s.inputs[1] = Shard(target_dim(d));
    switch (call.int_arg("reduction")) {
      case at::Reduction::None:
        s.outputs = {Shard(target_dim(d)), Replicate()};
        break;
      case at::Reduction::Sum:
        s.outputs = {Partial(ReduceOp::kSum), Partial(ReduceOp::kSum)};
        break;
      default:
        break;
    }
    all.push_back(std::move(s));
  }
  return all;
}

std::vector<OutputMeta> nll_forward_meta(const OpCall& call) {
  const auto& self = *call.inputs[0].spec;
  const auto scalar = dense({}, self.dtype());
  return {
      keeps_shape(call) ? dense(call.inputs[1].sizes(), self.dtype()) : scalar,
      scalar};
}

// Returns the strategies of (grad_output, self, target, weight?, total_weight)
// -> gradient of self.
Strategies nll_backward(const OpCall& call, int64_t) {
  Strategies all;
  const auto dim = call.inputs[1].dim();
  for (int64_t d = 0; dim > 1 && d < dim; ++d) {
    if (d == 1) {
      continue;
    }
    auto s = all_alike(call, Replicate());
    s.inputs[0] = keeps_shape(call) ? Shard(target_dim(d)) : Replicate();
    s.inputs[1] = Shard(d);
    s.inputs[2] = Shard(target_dim(d));
    s.outputs = {Shard(d)};
    all.push_back(s);
    if (call.int_arg("reduction") == at::Reduction::Sum) {
      s.inputs.back() = Partial(ReduceOp::kSum); // not used
      all.push_back(std::move(s));
    }
  }
  return all;
}

} // namespace

DTENSOR_RULES(loss) {
  for (const char* name :
       {"mse_loss",
        "smooth_l1_loss",
        "huber_loss",
        "soft_margin_loss",
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits"}) {
    rules.dim_rule(name, elementwise)
        .with_meta(elementwise_meta)
        .with_localize(keep_layouts)
        .with_local_kernel(detail::boxed(detail::loss_local));
  }
  for (const char* name :
       {"mse_loss_backward",
        "smooth_l1_loss_backward",
        "huber_loss_backward",
        "soft_margin_loss_backward",
        "binary_cross_entropy_backward"}) {
    rules.dim_rule(name, elementwise_backward)
        .with_meta(elementwise_backward_meta)
        .with_localize(keep_layouts)
        .with_local_kernel(detail::boxed(detail::loss_backward_local));
  }

  for (const char* name : {"nll_loss_forward", "nll_loss2d_forward"}) {
    rules.dim_rule(name, nll_forward)
        .with_meta(nll_forward_meta)
        .with_localize(keep_layouts)
        .with_local_kernel(detail::boxed(detail::nll_local));
  }
  for (const char* name : {"nll_loss_backward", "nll_loss2d_backward"}) {
    rules.dim_rule(name, nll_backward).with_meta(detail::dense_like_second);
  }
}

} // namespace dtensor
