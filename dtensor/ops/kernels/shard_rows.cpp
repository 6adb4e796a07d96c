// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/kernels/shard_rows_impl.h>

#include <ATen/ops/empty.h>
#include <c10/core/WrapDimMinimal.h>

namespace dtensor::detail {

// The local sizes give the number of rows: other mesh dimensions may shard
// other dimensions.
ShardRows::ShardRows(const KernelArgs& args, const Decision& decision)
    : shard(args.tensor("self")),
      spec(decision.inputs[0]),
      dim(c10::maybe_wrap_dim(args.integer("dim"), spec->dim())),
      size(spec->sizes()[static_cast<size_t>(dim)]) {
  const auto moved = shard.movedim(dim, -1);
  rows = moved.reshape(
      {numel(moved.sizes().slice(0, moved.sizes().size() - 1)),
       moved.size(-1)});
}

at::Tensor ShardRows::restored(const at::Tensor& t) const {
  auto sizes = shard.sizes().vec();
  sizes.erase(sizes.begin() + dim);
  sizes.push_back(t.size(1));
  return t.reshape(sizes).movedim(-1, dim).contiguous();
}

bool return_without_data(KernelArgs& args, const Decision& decision) {
  const auto shard = args.tensor("self");
  if (shard.is_meta()) {
    const auto sizes = decision.outputs[0]->local_sizes();
    args.returns(
        at::empty(sizes, shard.options()),
        at::empty(sizes, shard.options().dtype(at::kLong)));
  }
  return shard.is_meta();
}

} // namespace dtensor::detail
