// SPDX-License-Identifier: BSD-3-Clause
// nll_loss: samples may be sharded, the class dimension is unsharded.
#include <dtensor/ops/rules/loss_impl.h>

#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>

namespace dtensor {
namespace {

using detail::dense;
using detail::keep_specs;
using detail::keeps_shape;

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
    Strategy s;
    s.inputs.resize(call.inputs.size(), Replicate());
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
        s.outputs = {Replicate(), Replicate()};
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
    Strategy s;
    s.inputs.resize(call.inputs.size(), Replicate());
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

std::vector<OutputMeta> nll_backward_meta(const OpCall& call) {
  const auto& self = *call.inputs[1].spec;
  return {dense(self.sizes(), self.dtype())};
}

} // namespace

DTENSOR_RULES(nll_loss) {
  for (const char* name : {"nll_loss_forward", "nll_loss2d_forward"}) {
    rules.dim_rule(name, nll_forward)
        .with_meta(nll_forward_meta)
        .with_localize(keep_specs)
        .with_local_kernel(detail::nll_local);
  }
  for (const char* name : {"nll_loss_backward", "nll_loss2d_backward"}) {
    rules.dim_rule(name, nll_backward).with_meta(nll_backward_meta);
  }
}

} // namespace dtensor
