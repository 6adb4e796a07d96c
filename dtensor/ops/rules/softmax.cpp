// SPDX-License-Identifier: BSD-3-Clause
// Softmax and similar operators: the softmax dimension is unsharded, and all
// others may be sharded. The backward operators are linear in the gradient.
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/reduction_impl.h>
#include <dtensor/ops/rules/shapes_impl.h>

namespace dtensor {
namespace {

std::vector<OutputMeta> like_self(const OpCall& call) {
  const auto& self = *call.inputs[0].spec;
  const auto& dtype = call.arg("dtype");
  return {detail::dense(
      self.sizes(), dtype.isNone() ? self.dtype() : dtype.toScalarType())};
}

} // namespace

DTENSOR_RULES(softmax) {
  for (const auto* name : {"_softmax", "_log_softmax"}) {
    rules.dim_rule(name, detail::along_dim_rule());
  }
  rules.dim_rule("_safe_softmax", detail::along_dim_rule())
      .with_meta(like_self);
  for (const auto* name :
       {"_softmax_backward_data", "_log_softmax_backward_data"}) {
    rules.dim_rule(name, detail::along_dim_rule({0}));
  }
}

} // namespace dtensor
