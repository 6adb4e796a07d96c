// SPDX-License-Identifier: BSD-3-Clause
// Steps over several mesh dimensions, and steps on a sharding that is not the
// last one of its tensor dimension.
#include <dtensor/redistribute/steps_impl.h>

#include <dtensor/comm/group/mesh_groups_impl.h>
#include <dtensor/comm/group/shard_buffers_impl.h>

#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/Scalar.h>

#include <algorithm>
#include <utility>

namespace dtensor::detail {
namespace {

using Box = c10::SmallVector<Intervals, 5>;

Sizes sizes_of(const Box& box) {
  Sizes sizes;
  for (const Intervals& intervals : box) {
    sizes.push_back(total_size(intervals));
  }
  return sizes;
}

void append(Intervals& list, const Interval& next) {
  if (next.size() <= 0) {
    return;
  }
  if (!list.empty() && list.back().end == next.begin) {
    list.back().end = next.end;
  } else {
    list.push_back(next);
  }
}

Intervals sorted(Intervals intervals) {
  std::ranges::sort(intervals, [](const Interval& a, const Interval& b) {
    return a.begin < b.begin;
  });
  return intervals;
}

// Returns the indices of `list` that are also in `others`, in the order of
// `list`.
Intervals intersection(const Intervals& list, const Intervals& others) {
  const Intervals ascending = sorted(others);
  Intervals result;
  for (const Interval& mine : list) {
    for (const Interval& other : ascending) {
      append(
          result,
          {std::max(mine.begin, other.begin), std::min(mine.end, other.end)});
    }
  }
  return result;
}

Box intersection(const Box& box, const Box& others) {
  Box result;
  for (size_t d = 0; d < box.size(); ++d) {
    result.push_back(intersection(box[d], others[d]));
  }
  return result;
}

// Returns the offsets of `wanted` in a local tensor that holds `held`, in the
// order of `wanted`.
Intervals offsets_in(const Intervals& held, const Intervals& wanted) {
  struct Piece {
    Interval global;
    int64_t offset;
  };
  c10::SmallVector<Piece, 4> pieces;
  int64_t offset = 0;
  for (const Interval& interval : held) {
    pieces.push_back({interval, offset});
    offset += interval.size();
  }
  std::ranges::sort(pieces, [](const Piece& a, const Piece& b) {
    return a.global.begin < b.global.begin;
  });
  Intervals result;
  for (const Interval& next : wanted) {
    for (const auto& [global, first] : pieces) {
      const int64_t shift = first - global.begin;
      append(
          result,
          {std::max(global.begin, next.begin) + shift,
           std::min(global.end, next.end) + shift});
    }
  }
  return result;
}

// Returns the elements of `wanted` of a local tensor that holds `held`.
at::Tensor take(at::Tensor local, const Box& held, const Box& wanted) {
  for (size_t d = 0; d < held.size(); ++d) {
    if (held[d] != wanted[d]) {
      local = select_positions(
          local, static_cast<int64_t>(d), offsets_in(held[d], wanted[d]));
    }
  }
  return local;
}

// Copies `part`, the elements of `box` from its dimension `d` on, into a local
// tensor that holds `held`.
void put(
    const at::Tensor& local,
    const Box& held,
    const at::Tensor& part,
    const Box& box,
    size_t d = 0) {
  if (d == box.size()) {
    local.copy_(part);
    return;
  }
  const auto dim = static_cast<int64_t>(d);
  int64_t taken = 0;
  for (const Interval& to : offsets_in(held[d], box[d])) {
    put(local.narrow(dim, to.begin, to.size()),
        held,
        part.narrow(dim, taken, to.size()),
        box,
        d + 1);
    taken += to.size();
  }
}

at::Tensor flattened(const at::Tensor& t) {
  return t.contiguous().view({-1});
}

} // namespace

JointStep::JointStep(const Spec& spec, const Step& step)
    : spec_(spec),
      step_(step),
      group_(joint_group(spec.mesh(), step.mesh_dims)) {}

Intervals JointStep::indices(
    PlacementsRef placements,
    int64_t member,
    int64_t dim) const {
  const auto shape = spec_.mesh().shape();
  const auto& mine = *spec_.mesh().get_coordinate();
  Sizes coordinate(mine.begin(), mine.end());
  for (size_t i = step_.mesh_dims.size(); i-- > 0;) {
    const auto at = static_cast<size_t>(step_.mesh_dims[i]);
    coordinate[at] = member % shape[at];
    member /= shape[at];
  }
  return local_intervals(
      spec_.sizes()[static_cast<size_t>(dim)],
      dim,
      shape,
      placements,
      coordinate);
}

Box JointStep::box_of(PlacementsRef placements, int64_t member) const {
  Box box;
  for (int64_t dim = 0; dim < spec_.dim(); ++dim) {
    box.push_back(indices(placements, member, dim));
  }
  return box;
}

// Returns the reduction of the group. A mixture of sums and averages is a sum,
// which scaled() divides.
ReduceOp JointStep::reduce_op() const {
  const auto op_of = [&](int64_t dim) {
    return step_.before[static_cast<size_t>(dim)].reduce_op();
  };
  const auto& dims = step_.mesh_dims;
  const ReduceOp first = op_of(dims[0]);
  const bool is_uniform = std::ranges::all_of(
      dims, [&](int64_t dim) { return op_of(dim) == first; });
  return is_uniform ? first : ReduceOp::kSum;
}

at::Tensor JointStep::scaled(const at::Tensor& reduced) const {
  if (reduce_op() == ReduceOp::kAvg) {
    return reduced;
  }
  int64_t averaged = 1;
  for (const int64_t dim : step_.mesh_dims) {
    const auto i = static_cast<size_t>(dim);
    if (step_.before[i].is_partial(ReduceOp::kAvg)) {
      averaged *= spec_.mesh().shape()[i];
    }
  }
  return averaged == 1 ? reduced : at::div(reduced, at::Scalar(averaged));
}

int64_t JointStep::dim_in_order(PlacementsRef sharded) const {
  const auto dim = sharded[static_cast<size_t>(step_.mesh_dims[0])].dim();
  for (const int64_t mesh_dim : step_.mesh_dims) {
    if (sharded[static_cast<size_t>(mesh_dim)].dim() != dim) {
      return -1;
    }
  }
  const bool is_gather = step_.kind == StepKind::kAllGather;
  const auto held =
      indices(is_gather ? step_.after : step_.before, group_.rank(), dim);
  int64_t next = 0;
  for (int64_t member = 0; member < group_.size(); ++member) {
    const Intervals at = offsets_in(held, indices(sharded, member, dim));
    if (at.empty()) {
      continue;
    }
    if (at.size() > 1 || at[0].begin != next) {
      return -1;
    }
    next = at[0].end;
  }
  return dim;
}

Sizes JointStep::sizes_along(int64_t dim, PlacementsRef sharded) const {
  Sizes sizes;
  for (int64_t member = 0; member < group_.size(); ++member) {
    sizes.push_back(total_size(indices(sharded, member, dim)));
  }
  return sizes;
}

Sizes JointStep::numels(PlacementsRef placements) const {
  Sizes result;
  for (int64_t member = 0; member < group_.size(); ++member) {
    result.push_back(numel(sizes_of(box_of(placements, member))));
  }
  return result;
}

std::vector<at::Tensor> JointStep::parts_to_send(
    const at::Tensor& local) const {
  const Box held = box_of(step_.before, group_.rank());
  std::vector<at::Tensor> parts;
  for (int64_t member = 0; member < group_.size(); ++member) {
    const Box wanted = box_of(step_.after, member);
    parts.push_back(take(local, held, intersection(wanted, held)).contiguous());
  }
  return parts;
}

std::vector<Sizes> JointStep::shapes_to_receive() const {
  const Box wanted = box_of(step_.after, group_.rank());
  std::vector<Sizes> shapes;
  for (int64_t member = 0; member < group_.size(); ++member) {
    shapes.push_back(
        sizes_of(intersection(wanted, box_of(step_.before, member))));
  }
  return shapes;
}

// Joins the slices received from all members.
at::Tensor JointStep::assemble(const std::vector<at::Tensor>& parts) const {
  const Box wanted = box_of(step_.after, group_.rank());
  at::Tensor result = at::empty(sizes_of(wanted), parts[0].options());
  for (int64_t member = 0; member < group_.size(); ++member) {
    const Box sent = intersection(wanted, box_of(step_.before, member));
    put(result, wanted, parts[static_cast<size_t>(member)], sent);
  }
  return result;
}

at::Tensor JointStep::assemble(const at::Tensor& flat) const {
  return assemble(out_of_buffer(flat, shapes_to_receive()));
}

JointStep::Payload JointStep::payload_of(const at::Tensor& local) const {
  const bool is_gather = step_.kind == StepKind::kAllGather;
  const Placements& sharded = is_gather ? step_.before : step_.after;
  if (const int64_t dim = dim_in_order(sharded); dim >= 0) {
    return {local.contiguous(), dim, sizes_along(dim, sharded)};
  }
  return {
      is_gather ? flattened(local) : in_one_buffer(parts_to_send(local)),
      0,
      numels(sharded)};
}

at::Tensor JointStep::without_communication(const at::Tensor& local) const {
  const Box held = box_of(step_.before, group_.rank());
  const Box wanted = box_of(step_.after, group_.rank());
  if (step_.kind == StepKind::kSlice) {
    return take(local, held, wanted);
  }
  const auto at = static_cast<size_t>(step_.mesh_dims[0]);
  at::Tensor padded = at::full(
      sizes_of(wanted),
      neutral_element(step_.after[at].reduce_op()),
      local.options());
  put(padded, wanted, local, held);
  return padded;
}

at::Tensor JointStep::execute(const at::Tensor& local) const {
  switch (step_.kind) {
    case StepKind::kAllReduce:
      return finish(group_.all_reduce(local.contiguous(), reduce_op()));
    case StepKind::kAllToAll:
      return assemble(
          group_.all_to_all(parts_to_send(local), shapes_to_receive()));
    case StepKind::kAllGather: {
      const Payload payload = payload_of(local);
      return finish(
          group_.all_gather(payload.sent, payload.dim, payload.sizes));
    }
    case StepKind::kReduceScatter: {
      const Payload payload = payload_of(local);
      return finish(group_.reduce_scatter(
          payload.sent, payload.dim, reduce_op(), payload.sizes));
    }
    case StepKind::kSlice:
    case StepKind::kPad:
      return without_communication(local);
    default:
      TORCH_INTERNAL_ASSERT(false, "redistribute: not a joint step");
  }
}

PendingPtr JointStep::enter(at::Tensor&& local) const {
  const at::Tensor owned = std::move(local);
  switch (step_.kind) {
    case StepKind::kAllReduce:
      return group_.all_reduce_async(owned.contiguous(), reduce_op());
    case StepKind::kAllToAll: {
      const auto parts = parts_to_send(owned);
      return group_.all_to_all_async(
          in_one_buffer(parts),
          counts_of(shapes_of(parts)),
          counts_of(shapes_to_receive()));
    }
    case StepKind::kAllGather: {
      Payload payload = payload_of(owned);
      return group_.all_gather_async(
          std::move(payload.sent), payload.dim, payload.sizes);
    }
    case StepKind::kReduceScatter: {
      Payload payload = payload_of(owned);
      return group_.reduce_scatter_async(
          std::move(payload.sent),
          payload.dim,
          reduce_op(),
          /*out=*/{},
          payload.sizes);
    }
    default:
      TORCH_INTERNAL_ASSERT(false, "redistribute: not a joint step");
  }
}

at::Tensor JointStep::finish(const at::Tensor& received) const {
  switch (step_.kind) {
    case StepKind::kAllReduce:
      return scaled(received);
    case StepKind::kReduceScatter:
      return scaled(
          received.view(sizes_of(box_of(step_.after, group_.rank()))));
    case StepKind::kAllGather:
      return dim_in_order(step_.before) < 0 ? assemble(received) : received;
    default:
      return assemble(received);
  }
}

} // namespace dtensor::detail
