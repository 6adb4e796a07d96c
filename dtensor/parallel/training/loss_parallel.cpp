// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/loss_parallel.h>

#include <dtensor/ops/kernels/cross_entropy_impl.h>

namespace dtensor {

LossParallel::LossParallel() {
  ++detail::loss_parallel_depth();
}

LossParallel::~LossParallel() {
  --detail::loss_parallel_depth();
}

} // namespace dtensor
