// SPDX-License-Identifier: BSD-3-Clause
// Operators that copy, convert or fill: the layout stays, also a partial one.
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/pointwise_impl.h>

namespace dtensor {
namespace {

using namespace detail;

const std::vector<ReduceOp> kAllOps = {
    ReduceOp::kSum,
    ReduceOp::kAvg,
    ReduceOp::kMin,
    ReduceOp::kMax,
    ReduceOp::kProduct,
    ReduceOp::kBand,
    ReduceOp::kBor,
    ReduceOp::kBxor};

// A number that every rank writes is the value if the reduction of equal
// numbers is that number.
const std::vector<ReduceOp> kIdempotent = {
    ReduceOp::kAvg,
    ReduceOp::kMin,
    ReduceOp::kMax,
    ReduceOp::kBand,
    ReduceOp::kBor};

} // namespace

DTENSOR_RULES(copy) {
  for (const auto* name :
       {"_to_copy",
        "alias",
        "alias_copy",
        "clone",
        "detach",
        "detach_",
        "detach_copy",
        "lift",
        "lift_fresh",
        "lift_fresh_copy"}) {
    rules.dim_rule(name, pointwise_rule({kAllOps, {{0}}}));
  }
  // self keeps its layout, the source is brought to it.
  rules.dim_rule("copy", pointwise_rule({kSelectOps, {{0, 1}}}));
  rules.dim_rule("copy_", pointwise_rule({kSelectOps, {{0, 1}}}));
  rules.dim_rule("fill.Scalar", pointwise_rule({kIdempotent, {{0}}}));
  rules.dim_rule("fill.Tensor", pointwise_rule({kSelectOps, {{0, 1}}}));
  rules.dim_rule("zero", pointwise_rule({kAllOps, {{0}}}));
}

} // namespace dtensor
