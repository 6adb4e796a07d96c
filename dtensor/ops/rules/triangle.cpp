// SPDX-License-Identifier: BSD-3-Clause
// tril and triu. A shard of the rows or columns has its own diagonal: the
// global one, shifted by the shard's offset.
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/pointwise_impl.h>

namespace dtensor {
namespace {

// Returns the diagonal of this rank's shard. Element (i, j) of the shard is
// element (i + rows, j + cols) of the full tensor, so j - i <= diagonal becomes
// j - i <= diagonal + rows - cols.
int64_t local_diagonal(const Spec& spec, int64_t diagonal) {
  const auto& mesh = spec.mesh();
  const auto& coordinate = mesh.get_coordinate();
  if (!coordinate) {
    return diagonal; // a rank outside the mesh computes nothing
  }
  const auto offset =
      global_offset(spec.sizes(), mesh.shape(), spec.placements(), *coordinate);
  const auto rows = offset[offset.size() - 2];
  const auto cols = offset[offset.size() - 1];
  return diagonal + rows - cols;
}

void localize(const OpCall& call, Decision& decision) {
  decision.args.emplace_back(
      call.arg_index("diagonal"),
      local_diagonal(*decision.outputs[0], call.int_arg("diagonal")));
}

} // namespace

DTENSOR_RULES(triangle) {
  for (const auto* name : {"tril", "triu"}) {
    rules.dim_rule(name, detail::pointwise_rule({detail::sum_ops(), {{0}}}))
        .with_localize(localize)
        .no_strided();
  }
}

} // namespace dtensor
