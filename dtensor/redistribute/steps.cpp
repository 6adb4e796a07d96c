// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/redistribute/steps_impl.h>

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/redistribute/moves_impl.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace dtensor::detail {
namespace {

// Returns the distribution over mesh dimension `mesh_dim` of the tensor
// dimension that `placement` shards. `placement` is that of the mesh dimension
// before or after the step.
DimSharding
sharing(const Spec& spec, const Step& step, const Placement& placement) {
  const int64_t mesh_dim = step.mesh_dims[0];
  const auto at = static_cast<size_t>(mesh_dim);
  const auto shape = spec.mesh().shape();
  const auto as_last =
      last_sharding({spec.sizes(), shape}, step.before, mesh_dim, placement);
  TORCH_INTERNAL_ASSERT(
      as_last, "redistribute: the sharding is not the last one");
  Placements gathered = step.before;
  gathered[at] = Replicate();
  const int64_t size = total_size(local_intervals(
      spec.sizes()[static_cast<size_t>(placement.dim())],
      placement.dim(),
      shape,
      gathered,
      *spec.mesh().get_coordinate()));
  return {*as_last, size, shape[at]};
}

// Returns the sizes of `part`, with `size` for dimension `dim`.
Sizes resized(const at::Tensor& part, int64_t dim, int64_t size) {
  Sizes sizes(part.sizes());
  sizes[static_cast<size_t>(dim)] = size;
  return sizes;
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

// A step over one mesh dimension.
class SingleStep final : public LocalStep {
 public:
  SingleStep(const Spec& spec, const Step& step);

  at::Tensor execute(const at::Tensor& local) const override;
  PendingPtr enter(at::Tensor&& local) const override;
  at::Tensor finish(const at::Tensor& received) const override;

 private:
  at::Tensor slice(const at::Tensor& local) const;
  at::Tensor all_gather(const at::Tensor& local) const;
  at::Tensor in_rank_order(const at::Tensor& local) const;
  at::Tensor reduce_scatter(const at::Tensor& local) const;
  at::Tensor all_to_all(const at::Tensor& local) const;
  at::Tensor exchange_dims(const at::Tensor& local) const;
  at::Tensor exchange_within_dim(const at::Tensor& local) const;
  at::Tensor partition(const at::Tensor& local) const;
  at::Tensor pad(const at::Tensor& local) const;
  // True if the ranks exchange shards of consecutive chunks.
  bool exchanges_chunks() const;
  // Returns the sizes of the shards before the step, if the group would
  // otherwise exchange them.
  Sizes exchanged_sizes() const;

  StepKind kind_;
  Group* group_ = nullptr; // null if the step sends nothing
  int64_t my_rank_;
  // The reduction before the step, or after it for partition and pad.
  ReduceOp reduce_op_ = ReduceOp::kSum;
  // The shards before and after the step, if the placement is sharded.
  std::optional<DimSharding> from_;
  std::optional<DimSharding> to_;
  Sizes from_sizes_;
  // Sizes for reduce_scatter, if they are not those of torch.chunk.
  Sizes scattered_sizes_;
};

SingleStep::SingleStep(const Spec& spec, const Step& step)
    : kind_(step.kind),
      my_rank_((*spec.mesh().get_coordinate())[static_cast<size_t>(
          step.mesh_dims[0])]) {
  const auto at = static_cast<size_t>(step.mesh_dims[0]);
  const Placement& before = step.before[at];
  const Placement& after = step.after[at];
  if (collective_of(kind_)) {
    group_ = &get_group(spec.mesh(), step.mesh_dims[0]);
  }
  if (before.is_partial() || after.is_partial()) {
    reduce_op_ = (before.is_partial() ? before : after).reduce_op();
  }
  if (before.is_sharded()) {
    from_ = sharing(spec, step, before);
    from_sizes_ = from_->sizes();
  }
  if (after.is_sharded()) {
    to_ = sharing(spec, step, after);
    if (!to_->is_chunk()) {
      scattered_sizes_ = to_->sizes();
    }
  }
}

Sizes SingleStep::exchanged_sizes() const {
  return group_->exchanges_sizes() ? from_sizes_ : Sizes();
}

at::Tensor SingleStep::slice(const at::Tensor& local) const {
  return select_positions(local, to_->dim(), to_->shard(my_rank_));
}

at::Tensor SingleStep::all_gather(const at::Tensor& local) const {
  return from_->put_back(
      group_->all_gather(local, from_->dim(), exchanged_sizes()));
}

// Returns the input of reduce_scatter.
at::Tensor SingleStep::in_rank_order(const at::Tensor& local) const {
  return to_->in_order()
      ? local
      : select_positions(local, to_->dim(), to_->all_positions());
}

at::Tensor SingleStep::reduce_scatter(const at::Tensor& local) const {
  return group_->reduce_scatter(
      in_rank_order(local), to_->dim(), reduce_op_, scattered_sizes_);
}

bool SingleStep::exchanges_chunks() const {
  return from_->dim() != to_->dim() && from_->in_order() && to_->is_chunk();
}

// Sends each rank's shard, sharded again along another dimension, to the new
// owners.
at::Tensor SingleStep::exchange_dims(const at::Tensor& local) const {
  if (exchanges_chunks()) {
    return group_->shard_dim_alltoall(
        local, from_->dim(), to_->dim(), exchanged_sizes());
  }
  std::vector<at::Tensor> parts;
  std::vector<Sizes> shapes;
  for (int64_t rank = 0; rank < to_->ranks(); ++rank) {
    parts.push_back(
        select_positions(local, to_->dim(), to_->shard(rank)).contiguous());
  }
  const at::Tensor& kept = parts[static_cast<size_t>(my_rank_)];
  for (const int64_t size : from_sizes_) {
    shapes.push_back(resized(kept, from_->dim(), size));
  }
  return from_->put_back(
      at::cat(group_->all_to_all(parts, shapes), from_->dim()));
}

// Moves positions between two shardings of the same dimension.
at::Tensor SingleStep::exchange_within_dim(const at::Tensor& local) const {
  const Positions owners = to_->owners();
  const Positions mine = from_->positions(my_rank_);
  std::vector<at::Tensor> parts;
  std::vector<Sizes> shapes;
  Positions received;
  for (int64_t rank = 0; rank < from_->ranks(); ++rank) {
    parts.push_back(select_positions(
        local, to_->dim(), share_of(mine, owners, rank).offsets));
    const Share share = share_of(from_->positions(rank), owners, my_rank_);
    received.insert(
        received.end(), share.positions.begin(), share.positions.end());
    shapes.push_back(resized(
        local, to_->dim(), static_cast<int64_t>(share.positions.size())));
  }
  const at::Tensor joined =
      at::cat(group_->all_to_all(parts, shapes), to_->dim());
  return select_positions(joined, to_->dim(), sorted_order(received));
}

at::Tensor SingleStep::all_to_all(const at::Tensor& local) const {
  return from_->dim() == to_->dim() ? exchange_within_dim(local)
                                    : exchange_dims(local);
}

at::Tensor SingleStep::partition(const at::Tensor& local) const {
  switch (reduce_op_) {
    case ReduceOp::kSum:
    case ReduceOp::kProduct:
    case ReduceOp::kBxor:
      return my_rank_ == 0 ? local
                           : at::full_like(local, neutral_element(reduce_op_));
    case ReduceOp::kAvg:
    case ReduceOp::kMin:
    case ReduceOp::kMax:
    case ReduceOp::kBand:
    case ReduceOp::kBor:
      return local;
  }
  TORCH_INTERNAL_ASSERT(false, "redistribute: an unknown reduce op");
}

at::Tensor SingleStep::pad(const at::Tensor& local) const {
  at::Tensor padded = at::full(
      resized(local, from_->dim(), from_->size()),
      neutral_element(reduce_op_),
      local.options());
  int64_t offset = 0;
  for (const Interval& interval : from_->shard(my_rank_)) {
    padded.narrow(from_->dim(), interval.begin, interval.size())
        .copy_(local.narrow(from_->dim(), offset, interval.size()));
    offset += interval.size();
  }
  return padded;
}

at::Tensor SingleStep::execute(const at::Tensor& local) const {
  switch (kind_) {
    case StepKind::kSlice:
      return slice(local);
    case StepKind::kAllGather:
      return all_gather(local.contiguous());
    case StepKind::kAllToAll:
      return all_to_all(local);
    case StepKind::kReduceScatter:
      return reduce_scatter(local.contiguous());
    case StepKind::kAllReduce:
      return group_->all_reduce(local.contiguous(), reduce_op_);
    case StepKind::kPartition:
      return partition(local);
    case StepKind::kPad:
      return pad(local);
  }
  TORCH_INTERNAL_ASSERT(false, "redistribute: an unknown step");
}

PendingPtr SingleStep::enter(at::Tensor&& local) const {
  switch (kind_) {
    case StepKind::kAllGather:
      return group_->exchanges_sizes()
          ? group_->all_gather_async(
                std::move(local), from_->dim(), from_sizes_)
          : group_->all_gather_async(
                std::move(local), from_->dim(), from_->size());
    case StepKind::kReduceScatter:
      return group_->reduce_scatter_async(
          to_->in_order() ? std::move(local) : in_rank_order(local),
          to_->dim(),
          reduce_op_,
          /*out=*/{},
          scattered_sizes_);
    case StepKind::kAllReduce:
      return group_->all_reduce_async(std::move(local), reduce_op_);
    case StepKind::kAllToAll:
      return exchanges_chunks()
          ? group_->shard_dim_alltoall_async(
                std::move(local), from_->dim(), to_->dim(), exchanged_sizes())
          : nullptr;
    default:
      return nullptr;
  }
}

at::Tensor SingleStep::finish(const at::Tensor& received) const {
  return kind_ == StepKind::kAllGather ? from_->put_back(received) : received;
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
  const auto at = static_cast<size_t>(step.mesh_dims[0]);
  return is_below(step.before[at]) || is_below(step.after[at]);
}

} // namespace

double neutral_element(ReduceOp op) {
  return op == ReduceOp::kProduct ? 1 : 0;
}

LocalStepPtr prepare_step(const Spec& from, const Step& step) {
  if (is_joint(from, step)) {
    return prepare_joint_step(from, step);
  }
  return std::make_unique<SingleStep>(from, step);
}

} // namespace dtensor::detail
