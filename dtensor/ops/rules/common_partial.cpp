// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/rules/common_partial_impl.h>

#include <dtensor/ops/rules/pointwise_impl.h>

#include <algorithm>

namespace dtensor {

void detail::add_common_partial(
    const OpCall& call,
    int64_t mesh_dim,
    Strategies& strategies) {
  const auto& first = call.inputs[0].placement(mesh_dim);
  const bool common = first.is_partial() &&
      std::all_of(call.inputs.begin(), call.inputs.end(), [&](const auto& in) {
                        return in.placement(mesh_dim) == first &&
                            detail::keeps_partial_dtype(
                                   in.spec->dtype(), call.outputs[0].dtype);
                      });
  if (common) {
    strategies.push_back(
        {Placements(call.outputs.size(), first),
         Placements(call.inputs.size(), first)});
  }
}

} // namespace dtensor
