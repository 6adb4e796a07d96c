// SPDX-License-Identifier: BSD-3-Clause
// Softmax and its kin: the softmax dimension stays whole, all others may be
// sharded. The backward operators are linear in the gradient.
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/reduction_impl.h>

namespace dtensor {

DTENSOR_RULES(softmax) {
  for (const auto* name : {"_softmax", "_log_softmax", "_safe_softmax"}) {
    rules.dim_rule(name, detail::along_dim_rule());
  }
  for (const auto* name :
       {"_softmax_backward_data", "_log_softmax_backward_data"}) {
    rules.dim_rule(name, detail::along_dim_rule({0}));
  }
}

} // namespace dtensor
