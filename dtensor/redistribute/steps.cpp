// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/redistribute/steps_impl.h>

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/redistribute/moves_impl.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>

#include <utility>
#include <vector>

namespace dtensor::detail {
namespace {

// A step over one mesh dimension on this rank.
struct Move {
  const Spec& spec;
  const Step& step;

  const DeviceMesh& mesh() const {
    return spec.mesh();
  }
  size_t at() const {
    return static_cast<size_t>(step.mesh_dims[0]);
  }
  const Placement& from() const {
    return step.before[at()];
  }
  const Placement& to() const {
    return step.after[at()];
  }
  int64_t my_rank() const {
    return (*mesh().get_coordinate())[at()];
  }
  Group& group() const {
    return get_group(mesh(), step.mesh_dims[0]);
  }

  /// Returns the distribution over the group of the dimension that `placement`
  /// shards. `placement` is `from()` or `to()`.
  DimSharding sharing(const Placement& placement) const {
    const auto as_last = detail::last_sharding(
        {spec.sizes(), mesh().shape()},
        step.before,
        step.mesh_dims[0],
        placement);
    TORCH_INTERNAL_ASSERT(
        as_last, "redistribute: the sharding is not the last one");
    Placements gathered = step.before;
    gathered[at()] = Replicate();
    const int64_t size = total_size(local_intervals(
        spec.sizes()[static_cast<size_t>(placement.dim())],
        placement.dim(),
        mesh().shape(),
        gathered,
        *mesh().get_coordinate()));
    return {*as_last, size, mesh().shape()[at()]};
  }
};

// Returns the shard sizes, if the group would otherwise exchange them.
Sizes exchanged_sizes(const Group& group, const DimSharding& parts) {
  return group.exchanges_sizes() ? parts.sizes() : Sizes();
}

// Returns the shard sizes for reduce_scatter, if they are not those of
// torch.chunk.
Sizes reduce_scatter_sizes(const DimSharding& parts) {
  return parts.is_chunk() ? Sizes() : parts.sizes();
}

// Returns the sizes of `part`, with `size` for dimension `dim`.
Sizes resized(const at::Tensor& part, int64_t dim, int64_t size) {
  Sizes sizes(part.sizes());
  sizes[static_cast<size_t>(dim)] = size;
  return sizes;
}

at::Tensor slice(const Move& move, const at::Tensor& local) {
  const DimSharding to = move.sharing(move.to());
  return select_positions(local, to.dim(), to.shard(move.my_rank()));
}

at::Tensor all_gather(const Move& move, const at::Tensor& local) {
  const DimSharding from = move.sharing(move.from());
  Group& group = move.group();
  return from.put_back(
      group.all_gather(local, from.dim(), exchanged_sizes(group, from)));
}

at::Tensor reduce_scatter(const Move& move, const at::Tensor& local) {
  const DimSharding to = move.sharing(move.to());
  const at::Tensor parts = to.in_order()
      ? local
      : select_positions(local, to.dim(), to.all_positions());
  return move.group().reduce_scatter(
      parts, to.dim(), move.from().reduce_op(), reduce_scatter_sizes(to));
}

// Sends each rank's `from` shard, sharded again by `to`, to the new owners.
at::Tensor exchange_dims(
    const Move& move,
    const at::Tensor& local,
    const DimSharding& from,
    const DimSharding& to) {
  if (from.in_order() && to.is_chunk()) {
    Group& group = move.group();
    return group.shard_dim_alltoall(
        local, from.dim(), to.dim(), exchanged_sizes(group, from));
  }
  std::vector<at::Tensor> parts;
  std::vector<Sizes> shapes;
  const Sizes old = from.sizes();
  for (int64_t rank = 0; rank < to.ranks(); ++rank) {
    parts.push_back(
        select_positions(local, to.dim(), to.shard(rank)).contiguous());
  }
  const at::Tensor& kept = parts[static_cast<size_t>(move.my_rank())];
  for (const int64_t size : old) {
    shapes.push_back(resized(kept, from.dim(), size));
  }
  return from.put_back(
      at::cat(move.group().all_to_all(parts, shapes), from.dim()));
}

// The positions in the shard of `rank` under `from` that `owner` receives.
struct Share {
  Positions positions; // in the full dimension
  Positions offsets;   // in the shard of `rank`
};

Share share_of(const Positions& part, const Positions& owners, int64_t owner) {
  Share share;
  for (size_t i = 0; i < part.size(); ++i) {
    if (owners[static_cast<size_t>(part[i])] == owner) {
      share.positions.push_back(part[i]);
      share.offsets.push_back(static_cast<int64_t>(i));
    }
  }
  return share;
}

// Moves positions between two shardings of the same dimension.
at::Tensor exchange_within_dim(
    const Move& move,
    const at::Tensor& local,
    const DimSharding& from,
    const DimSharding& to) {
  const int64_t me = move.my_rank();
  const Positions owners = to.owners();
  const Positions mine = from.positions(me);
  std::vector<at::Tensor> parts;
  std::vector<Sizes> shapes;
  Positions received;
  for (int64_t rank = 0; rank < from.ranks(); ++rank) {
    parts.push_back(select_positions(
        local, to.dim(), share_of(mine, owners, rank).offsets));
    const Share share = share_of(from.positions(rank), owners, me);
    received.insert(
        received.end(), share.positions.begin(), share.positions.end());
    shapes.push_back(
        resized(local, to.dim(), static_cast<int64_t>(share.positions.size())));
  }
  const at::Tensor joined =
      at::cat(move.group().all_to_all(parts, shapes), to.dim());
  return select_positions(joined, to.dim(), sorted_order(received));
}

at::Tensor all_to_all(const Move& move, const at::Tensor& local) {
  const DimSharding from = move.sharing(move.from());
  const DimSharding to = move.sharing(move.to());
  return from.dim() == to.dim() ? exchange_within_dim(move, local, from, to)
                                : exchange_dims(move, local, from, to);
}

at::Tensor partition(const Move& move, const at::Tensor& local) {
  switch (const ReduceOp op = move.to().reduce_op()) {
    case ReduceOp::kSum:
    case ReduceOp::kProduct:
    case ReduceOp::kBxor:
      return move.my_rank() == 0 ? local
                                 : at::full_like(local, neutral_element(op));
    case ReduceOp::kAvg:
    case ReduceOp::kMin:
    case ReduceOp::kMax:
    case ReduceOp::kBand:
    case ReduceOp::kBor:
      return local;
  }
  TORCH_INTERNAL_ASSERT(false, "redistribute: an unknown reduce op");
}

at::Tensor pad(const Move& move, const at::Tensor& local) {
  const DimSharding from = move.sharing(move.from());
  Sizes sizes(local.sizes().begin(), local.sizes().end());
  sizes[static_cast<size_t>(from.dim())] = from.size();
  at::Tensor padded =
      at::full(sizes, neutral_element(move.to().reduce_op()), local.options());
  int64_t offset = 0;
  for (const Interval& interval : from.shard(move.my_rank())) {
    padded.narrow(from.dim(), interval.begin, interval.size())
        .copy_(local.narrow(from.dim(), offset, interval.size()));
    offset += interval.size();
  }
  return padded;
}

// Starts an all_to_all of shards of equal shapes. Returns null for other
// shards.
PendingPtr enter_exchange(const Move& move, at::Tensor&& local) {
  const DimSharding from = move.sharing(move.from());
  const DimSharding to = move.sharing(move.to());
  return from.dim() != to.dim() && from.in_order() && to.is_chunk()
      ? move.group().shard_dim_alltoall_async(
            std::move(local),
            from.dim(),
            to.dim(),
            exchanged_sizes(move.group(), from))
      : nullptr;
}

// True for steps over several mesh dimensions, and for steps on one mesh
// dimension that do not only make, move or undo the last sharding of a tensor
// dimension.
bool is_joint(const Spec& spec, const Step& step) {
  if (step.mesh_dims.size() > 1 ||
      (step.kind == StepKind::kAllToAll && !is_permutation(step))) {
    return true;
  }
  const auto is_below = [&](const Placement& placement) {
    return placement.is_sharded() &&
        !last_sharding(
               {spec.sizes(), spec.mesh().shape()},
               step.before,
               step.mesh_dims[0],
               placement);
  };
  const Move move{spec, step};
  return is_below(move.from()) || is_below(move.to());
}

} // namespace

double neutral_element(ReduceOp op) {
  return op == ReduceOp::kProduct ? 1 : 0;
}

at::Tensor
execute_step(const Spec& from, const Step& step, const at::Tensor& local) {
  if (is_joint(from, step)) {
    return JointStep(from, step).execute(local);
  }
  const Move move{from, step};
  switch (step.kind) {
    case StepKind::kSlice:
      return slice(move, local);
    case StepKind::kAllGather:
      return all_gather(move, local.contiguous());
    case StepKind::kAllToAll:
      return all_to_all(move, local);
    case StepKind::kReduceScatter:
      return reduce_scatter(move, local.contiguous());
    case StepKind::kAllReduce:
      return move.group().all_reduce(
          local.contiguous(), move.from().reduce_op());
    case StepKind::kPartition:
      return partition(move, local);
    case StepKind::kPad:
      return pad(move, local);
  }
  TORCH_INTERNAL_ASSERT(false, "redistribute: an unknown step");
}

PendingPtr enter_step(const Spec& from, const Step& step, at::Tensor&& local) {
  if (!collective_of(step.kind)) {
    return nullptr;
  }
  if (is_joint(from, step)) {
    return JointStep(from, step).enter(std::move(local));
  }
  const Move move{from, step};
  switch (step.kind) {
    case StepKind::kAllGather: {
      const DimSharding parts = move.sharing(move.from());
      Group& group = move.group();
      return group.exchanges_sizes()
          ? group.all_gather_async(std::move(local), parts.dim(), parts.sizes())
          : group.all_gather_async(std::move(local), parts.dim(), parts.size());
    }
    case StepKind::kReduceScatter: {
      const DimSharding to = move.sharing(move.to());
      return move.group().reduce_scatter_async(
          to.in_order() ? std::move(local)
                        : select_positions(local, to.dim(), to.all_positions()),
          to.dim(),
          move.from().reduce_op(),
          /*out=*/{},
          reduce_scatter_sizes(to));
    }
    case StepKind::kAllReduce:
      return move.group().all_reduce_async(
          std::move(local), move.from().reduce_op());
    case StepKind::kAllToAll:
      return enter_exchange(move, std::move(local));
    default:
      return nullptr;
  }
}

at::Tensor
finish_step(const Spec& from, const Step& step, const at::Tensor& received) {
  if (is_joint(from, step)) {
    return JointStep(from, step).finish(received);
  }
  const Move move{from, step};
  return step.kind == StepKind::kAllGather
      ? move.sharing(move.from()).put_back(received)
      : received;
}

} // namespace dtensor::detail
