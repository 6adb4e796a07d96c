// SPDX-License-Identifier: BSD-3-Clause
// bincount: the number of bins depends on the elements of all ranks.
#include <dtensor/error.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/tensor/dtensor.h>

#include <ATen/ops/bincount.h>
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>

#include <algorithm>
#include <optional>
#include <string>

namespace dtensor {
namespace {

// Returns the layout of the counts: shards add up.
Placements counted(PlacementsRef placements) {
  Placements counts(placements.begin(), placements.end());
  for (auto& p : counts) {
    p = p.is_sharded() ? Placement(Partial(ReduceOp::kSum)) : Replicate();
  }
  return counts;
}

// Returns the layout in which the elements are counted, without partial sums.
Placements countable(PlacementsRef placements) {
  Placements kept(placements.begin(), placements.end());
  for (auto& p : kept) {
    p = p.is_partial() ? Placement(Replicate()) : p;
  }
  return kept;
}

// Returns the number of bins that the elements of all ranks need; zero for
// operands that the plain operator refuses.
int64_t bins_for(const std::string& name, const at::Tensor& self) {
  if (self.numel() == 0 || !at::isIntegralType(self.scalar_type(), false)) {
    return 0;
  }
  const auto least = at::min(self).item<int64_t>();
  DTENSOR_CHECK_VALUE(
      least >= 0,
      "[{}] counts non-negative integers only, got {}. Subtract the minimum "
      "first.",
      name,
      least);
  return at::max(self).item<int64_t>() + 1;
}

// Kernel of bincount: every rank counts its elements into the bins of all.
void bincount(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  detail::KernelArgs args(op, *stack);
  const auto given = args.tensor("self");
  const auto weights = args.optional_tensor("weights");
  const bool shard = is_dtensor(given) && given.dim() == 1 &&
      (!weights || (is_dtensor(*weights) && weights->sizes() == given.sizes()));
  DTENSOR_CHECK_VALUE(
      shard,
      "[{}] needs a DTensor of one dimension, and weights of its size. Reshape "
      "them, or distribute the plain one.",
      args.name());
  const auto layout = countable(DTensor(given).placements());
  const DTensor self(DTensor(given).redistribute(layout));
  const auto bins =
      std::max(bins_for(args.name(), self), args.integer("minlength"));
  std::optional<at::Tensor> local_weights;
  if (weights) {
    local_weights = DTensor(DTensor(*weights).redistribute(layout)).to_local();
  }
  auto counts = at::bincount(self.to_local(), local_weights, bins);
  if (weights && self.numel() > 0) {
    // The counts of an empty shard are integers.
    counts = counts.to(
        weights->scalar_type() == at::kFloat ? at::kFloat : at::kDouble);
  }
  args.returns(
      DTensor::from_local(counts, self.device_mesh(), counted(layout)));
}

} // namespace

DTENSOR_RULES(lookup_kernels) {
  rules.kernel("bincount", bincount);
}

} // namespace dtensor
