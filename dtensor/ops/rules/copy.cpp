// SPDX-License-Identifier: BSD-3-Clause
// Operators that copy, convert or fill: the layout stays, even a partial one.
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/pointwise_impl.h>

namespace dtensor {
namespace {

using namespace detail;

// Returns the reductions under which a filled tensor may stay partial. The
// reduction of equal numbers must be that number; for a sum, only one rank
// writes it.
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
  // Module::clone() calls clone(), for example. The result still stands for the
  // parameter.
  for (const auto* name : {"_to_copy", "alias", "clone", "detach"}) {
    rules.dim_rule(name, pointwise_rule({all_ops(), {{0}}}))
        .with_traits({.keeps_boundary = true});
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
  // self keeps its layout, and the source is redistributed to it.
  // torch::nn::init writes its random numbers by copy_.
  rules.dim_rule("copy", pointwise_rule({select_ops(), {{0, 1}}}));
  rules.dim_rule("copy_", pointwise_rule({select_ops(), {{0, 1}}}))
      .with_traits({.accepts_plain_source = true});
  rules.dim_rule("fill.Scalar", pointwise_rule({fill_ops(), {{0}}}))
      .with_local_kernel(boxed(write_number_once));
  rules.dim_rule("fill.Tensor", pointwise_rule({select_ops(), {{0, 1}}}));
  rules.traits("fill_.Tensor", {.accepts_plain_source = true});
  rules.dim_rule("zero", pointwise_rule({all_ops(), {{0}}}));
}

} // namespace dtensor
