// SPDX-License-Identifier: BSD-3-Clause
// Operators that copy, convert or fill: the layout stays, also a partial one.
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/pointwise_impl.h>

namespace dtensor {
namespace {

using namespace detail;

// A number that every rank writes is the value if the reduction of equal
// numbers is that number; into a sum only one rank writes it.
std::vector<ReduceOp> fill_ops() {
  return {
      ReduceOp::kSum,
      ReduceOp::kAvg,
      ReduceOp::kMin,
      ReduceOp::kMax,
      ReduceOp::kBand,
      ReduceOp::kBor};
}

} // namespace

DTENSOR_RULES(copy) {
  // clone() as Module::clone() calls it, and so on: still that parameter.
  for (const auto* name : {"_to_copy", "alias", "clone", "detach"}) {
    rules.dim_rule(name, pointwise_rule({all_ops(), {{0}}}))
        .with_traits({.carries = true});
  }
  for (const auto* name :
       {"alias_copy",
        "detach_",
        "detach_copy",
        "lift",
        "lift_fresh",
        "lift_fresh_copy"}) {
    rules.dim_rule(name, pointwise_rule({all_ops(), {{0}}}));
  }
  // self keeps its layout, the source is brought to it. torch::nn::init writes
  // what it has drawn by copy_.
  rules.dim_rule("copy", pointwise_rule({select_ops(), {{0, 1}}}));
  rules.dim_rule("copy_", pointwise_rule({select_ops(), {{0, 1}}}))
      .with_traits({.takes_plain = true});
  rules.dim_rule("fill.Scalar", pointwise_rule({fill_ops(), {{0}}}))
      .with_local_kernel(write_number_once);
  rules.dim_rule("fill.Tensor", pointwise_rule({select_ops(), {{0, 1}}}));
  rules.dim_rule("zero", pointwise_rule({all_ops(), {{0}}}));
}

} // namespace dtensor
