// SPDX-License-Identifier: BSD-3-Clause
// The gradient of dropout, which is linear in the gradient of its result. The
// forward operators are kernels (ops/kernels/dropout.cpp).
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>

namespace dtensor {
namespace {

Strategies native_dropout_backward(const OpCall& call, int64_t) {
  Strategies all;
  for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
    all.push_back({{Shard(d)}, {Shard(d), Shard(d)}});
  }
  // The mask turns integers into floating-point numbers, and partial integer
  // sums may have wrapped around.
  const bool floats = at::isFloatingType(call.inputs[0].spec->dtype());
  for (const auto reduce : {ReduceOp::kSum, ReduceOp::kAvg}) {
    if (!floats) {
      break;
    }
    all.push_back({{Partial(reduce)}, {Partial(reduce), Replicate()}});
  }
  return all;
}

} // namespace

DTENSOR_RULES(dropout) {
  rules.dim_rule("native_dropout_backward", native_dropout_backward)
      .with_meta(detail::pointwise_meta);
}

} // namespace dtensor
