// SPDX-License-Identifier: BSD-3-Clause
// kthvalue and medians along a sharded dimension. Each rank sorts its shard,
// and the ranks find the element at a position of the sorted whole.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/kernels/picked_impl.h>
#include <dtensor/ops/kernels/shard_rows_impl.h>
#include <dtensor/ops/kernels/sorted_rows_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/where.h>

#include <string>

namespace dtensor {
namespace {

// Returns the position of the wanted element in each sorted row, (rows, 1), of
// `size` elements. NaN are greatest: a median is NaN if there are any, and a
// nanmedian is the median of the others.
at::Tensor wanted_position(
    const detail::KernelArgs& args,
    const at::Tensor& rows,
    int64_t size,
    Group& group) {
  const auto options = rows.options().dtype(at::kLong);
  const auto& op = args.op().schema().name();
  if (op == "aten::kthvalue") {
    return at::full({rows.size(0), 1}, args.integer("k") - 1, options);
  }
  const auto nans =
      group.all_reduce(rows.isnan().sum(1, /*keepdim=*/true), ReduceOp::kSum);
  const auto middle = [](const at::Tensor& count) {
    return (count - 1).clamp_min(0).floor_divide(2);
  };
  return op == "aten::nanmedian"
      ? middle(size - nans)
      : at::where(nans.gt(0), size - nans, middle(at::full_like(nans, size)));
}

} // namespace

void detail::selection_local(KernelArgs& args, const Decision& decision) {
  if (return_without_data(args, decision)) {
    return;
  }
  const ShardRows self(args, decision);
  const auto size = self.size;
  const auto rows = self.rows.detach();
  auto& group =
      get_group(self.spec->mesh(), mesh_dim_sharding(*self.spec, self.dim));
  const auto [keys, order] = stable_sort(order_keys(rows, false), 1);
  const auto begin = chunk(size, group.size(), group.rank()).begin;
  const auto indices = self.restored(indices_at(
      {keys, order + begin, size, chunk(size, group.size(), 0).size()},
      wanted_position(args, rows, size, group),
      group));
  const auto values =
      picked_from_shards(self.shard, {}, indices, self.dim, self.spec);
  const auto sizes = decision.outputs[0]->local_sizes();
  args.returns(values.reshape(sizes), indices.reshape(sizes));
}

} // namespace dtensor
