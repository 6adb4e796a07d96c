// SPDX-License-Identifier: BSD-3-Clause
// Operators along one dimension that keep its size. For cumulative sums and
// softmax, this dimension may be sharded; for the others it is unsharded.
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/reduction_impl.h>
#include <dtensor/ops/rules/shapes_impl.h>
#include <dtensor/ops/shard_cost_impl.h>

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace dtensor {
namespace {

using namespace detail;

std::vector<OutputMeta> scanned_and_indices(const OpCall& call) {
  const auto& self = *call.inputs[0].spec;
  return {dense_like(self), dense(self.sizes(), at::kLong)};
}

// Returns the strategies of renorm, which scales each slice along `dim` by its
// own norm.
Strategies renorm_rule(const OpCall& call, int64_t) {
  const auto dim = call.dim_arg("dim", call.inputs[0].dim());
  return {{{Shard(dim)}, {Shard(dim)}}};
}

// Returns true if the shards of the scanned dimension are in rank order, so
// that the local kernel of a cumulative operator can combine them: shards of a
// StridedShard are not.
bool is_in_rank_order(const OpCall& call, int64_t) {
  const auto& self = *call.inputs[0].spec;
  const auto dim = call.dim_arg("dim", self.dim());
  return std::ranges::none_of(self.placements(), [&](const Placement& p) {
    return p.is_strided_shard() && p.dim() == dim;
  });
}

// Excludes complex numbers from the shards that logcumsumexp combines: a
// complex sum has several logarithms, and the plain operator's choice depends
// on the order of the terms.
bool is_real_in_rank_order(const OpCall& call, int64_t mesh_dim) {
  return !c10::isComplexType(call.inputs[0].spec->dtype()) &&
      is_in_rank_order(call, mesh_dim);
}

bool scans_shards(const OpCall& call, const Spec& self) {
  return self.dim() > 0 && self.is_sharded(call.dim_arg("dim", self.dim()));
}

// Marks calls that the operator itself can run.
void note_plain_scan(const OpCall& call, Decision& decision) {
  decision.is_plain_call = !scans_shards(call, decision.layout_of(call, 0));
}

// Marks calls that the operator itself can run: calls with elements, because
// their gradient depends on the same tensors as on other ranks.
void note_plain_scan_of_some(const OpCall& call, Decision& decision) {
  const auto& self = decision.layout_of(call, 0);
  decision.is_plain_call =
      !scans_shards(call, self) && numel(self.local_sizes()) > 0;
}

// Returns the rule of softmax and similar operators, and of their gradients,
// which are linear in operand 0. Along a sharded dimension, ranks combine
// `all_reduces` numbers of each row, one after the other.
DimRule softmax_rule(int64_t all_reduces, std::vector<size_t> linear = {}) {
  const auto is_faster = [all_reduces](const OpCall& call, int64_t mesh_dim) {
    const auto dim = call.dim_arg("dim", call.inputs[0].dim());
    const auto bytes = static_cast<double>(
        std::max<size_t>(c10::elementSize(call.outputs[0].dtype), 4));
    return is_faster_on_shards(
        call,
        mesh_dim,
        {dim},
        {CollectiveKind::kAllReduce, all_reduces, bytes});
  };
  return along_dim_rule(std::move(linear), is_faster);
}

std::vector<OutputMeta> like_self(const OpCall& call) {
  const auto& self = *call.inputs[0].spec;
  const auto& dtype = call.arg("dtype");
  return {dense(
      self.sizes(), dtype.isNone() ? self.dtype() : dtype.toScalarType())};
}

} // namespace

DTENSOR_RULES(scan) {
  // Gradients are scans in the other direction, over totals of other ranks.
  rules.dim_rule("cumsum", along_dim_rule({0}, is_in_rank_order))
      .with_localize(note_plain_scan)
      .with_local_kernel(boxed(cumsum_local))
      .as_region();
  const auto add_scan = [&](const char* name,
                            const DimRule& rule,
                            LocalKernelFunction& kernel) -> OpRule& {
    return rules.dim_rule(name, rule)
        .with_localize(note_plain_scan_of_some)
        .with_local_kernel(boxed(kernel));
  };
  const auto scan = along_dim_rule({}, is_in_rank_order);
  add_scan("cumprod", scan, cumprod_local).as_region();
  for (const auto* name : {"cummax", "cummin"}) {
    add_scan(name, scan, running_extreme_local)
        .with_meta(scanned_and_indices)
        .as_region();
  }
  const auto logcumsumexp = along_dim_rule({}, is_real_in_rank_order);
  add_scan("logcumsumexp", logcumsumexp, logcumsumexp_local)
      .with_meta(dense_like_first)
      .as_region();
  add_scan("_logcumsumexp", logcumsumexp, logcumsumexp_local)
      .with_meta(dense_like_first);
  rules.dim_rule("renorm", renorm_rule);
  rules.dim_rule("glu", along_dim_rule());
  // LibTorch's formula of the second derivative passes plain ones.
  rules.dim_rule("glu_backward", along_dim_rule({0}))
      .with_meta(dense_like_second)
      .depends_on_backward();
  const auto add_softmax =
      [&](const char* name, const DimRule& rule, LocalKernelFunction& kernel) {
        return &rules.dim_rule(name, rule)
                    .with_localize(note_shared_dims)
                    .with_local_kernel(boxed(kernel));
      };
  const auto forward = softmax_rule(2);
  add_softmax("_softmax", forward, softmax_local);
  add_softmax("_log_softmax", forward, log_softmax_local);
  add_softmax("_safe_softmax", forward, safe_softmax_local)
      ->with_meta(like_self);
  const auto backward = softmax_rule(1, {0});
  add_softmax("_softmax_backward_data", backward, softmax_backward_local);
  add_softmax(
      "_log_softmax_backward_data", backward, log_softmax_backward_local);
}

} // namespace dtensor
