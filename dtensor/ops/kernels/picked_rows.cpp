// SPDX-License-Identifier: BSD-3-Clause
// Rows of a sharded dimension that every rank picks from its own shard. The
// other rows are zeros, so the result is a sum over ranks. A slice of at least
// as many rows as ranks is sharded instead: ranks exchange rows.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <ATen/ops/empty_strided.h>
#include <c10/core/WrapDimMinimal.h>
#include <dtensor/ops/kernels/row_exchange_impl.h>
#include <dtensor/ops/kernels/taken_rows_impl.h>
#include <dtensor/tensor/memory_order_impl.h>

#include <algorithm>
#include <vector>

namespace dtensor {

at::Tensor detail::zeros_of(
    const Spec& layout,
    const at::TensorOptions& options) {
  const auto sizes = layout.local_sizes();
  return at::empty_strided(
             sizes, dense_strides(sizes, layout.strides()), options)
      .zero_();
}

detail::TakenRows detail::taken_rows(const KernelArgs& args, SizesRef sizes) {
  const auto dim = c10::maybe_wrap_dim(
      args.integer("dim"), static_cast<int64_t>(sizes.size()));
  const auto size = sizes[static_cast<size_t>(dim)];
  if (args.find("index") >= 0) {
    const auto row = c10::maybe_wrap_dim(args.integer("index"), size);
    return {dim, {.begin = row}, /*drops_dim=*/true};
  }
  const auto bound = [&](const char* name) {
    const auto at = args.integer(name);
    return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size);
  };
  const auto begin = bound("start");
  const auto step = std::min(args.integer("step"), std::max<int64_t>(size, 1));
  const auto count = (std::max(bound("end"), begin) - begin + step - 1) / step;
  return {dim, {begin, step, count}, /*drops_dim=*/false};
}

bool detail::can_pick(at::ScalarType dtype) {
  const bool is_float = at::isFloatingType(dtype) &&
      (!at::isReducedFloatingType(dtype) || dtype == at::kHalf ||
       dtype == at::kBFloat16);
  return is_float || at::isComplexType(dtype) ||
      (at::isIntegralType(dtype, /*includeBool=*/false) &&
       !at::isBarebonesUnsignedType(dtype));
}

int64_t
detail::exchanging_dim(const Spec& whole, const Spec& part, int64_t dim) {
  for (size_t m = 0; m < whole.placements().size(); ++m) {
    if (whole.placements()[m].is_sharded(dim) &&
        part.placements()[m].is_sharded(dim)) {
      return static_cast<int64_t>(m);
    }
  }
  return -1;
}

namespace {

using detail::KernelArgs;
using detail::SteppedRange;
using detail::TakenRows;

// Returns the positions, in the slice, of the rows of each rank's shard.
std::vector<Interval> positions_of_ranks(
    const Spec& whole,
    int64_t mesh_dim,
    const SteppedRange& range) {
  auto ranges = detail::rows_of_ranks(whole, mesh_dim);
  for (auto& rows : ranges) {
    rows = range.positions_in(rows);
  }
  return ranges;
}

std::vector<Intervals> as_lists(const std::vector<Interval>& ranges) {
  std::vector<Intervals> lists;
  for (const auto& range : ranges) {
    lists.push_back({range});
  }
  return lists;
}

// Returns this rank's shard of the slice: a view if no rank needs rows of
// another.
at::Tensor exchanged_slice(
    const at::Tensor& shard,
    const Spec& whole,
    const Spec& part,
    int64_t mesh_dim,
    const TakenRows& taken) {
  auto held = shard.narrow(taken.dim, 0, 0);
  detail::for_held_rows(
      shard, whole, taken, [&](Interval, const at::Tensor& rows) {
        held = rows;
      });
  const auto has = as_lists(positions_of_ranks(whole, mesh_dim, taken.range));
  const auto needed = detail::rows_of_ranks(part, mesh_dim);
  return detail::moves_rows(has, needed)
      ? detail::in_memory_order(
            detail::move_rows(
                held, taken.dim, whole.mesh(), mesh_dim, has, needed),
            part.strides())
      : held;
}

} // namespace

void detail::take_rows_local(KernelArgs& args, const Decision& decision) {
  const auto& whole = *decision.inputs[0];
  const auto& part = *decision.outputs[0];
  const auto shard = args.tensor("self");
  const auto taken = taken_rows(args, whole.sizes());
  const auto mesh_dim =
      taken.drops_dim ? -1 : exchanging_dim(whole, part, taken.dim);
  if (mesh_dim >= 0) {
    args.returns(exchanged_slice(shard, whole, part, mesh_dim, taken));
    return;
  }
  const auto result = zeros_of(part, shard.options());
  const auto rows = taken.drops_dim ? result.unsqueeze(taken.dim) : result;
  detail::for_held_rows(
      shard, whole, taken, [&](Interval positions, const at::Tensor& held) {
        rows.narrow(taken.dim, positions.begin, positions.size()).copy_(held);
      });
  args.returns(result);
}

void detail::slice_backward_local(KernelArgs& args, const Decision& decision) {
  const auto& whole = *decision.outputs[0];
  const auto& part = *decision.inputs[0];
  auto grad = args.tensor("grad_output");
  const auto taken = taken_rows(args, whole.sizes());
  const auto mesh_dim = exchanging_dim(whole, part, taken.dim);
  const auto has = as_lists(rows_of_ranks(part, mesh_dim));
  const auto needed = positions_of_ranks(whole, mesh_dim, taken.range);
  if (moves_rows(has, needed)) {
    grad = move_rows(grad, taken.dim, whole.mesh(), mesh_dim, has, needed);
  }
  const auto result = zeros_of(whole, grad.options());
  detail::for_held_rows(
      result, whole, taken, [&](Interval, const at::Tensor& held) {
        held.copy_(grad);
      });
  args.returns(result);
}

} // namespace dtensor
