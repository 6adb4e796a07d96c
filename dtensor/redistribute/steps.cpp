// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/redistribute/steps_impl.h>

#include <dtensor/comm/group/shard_buffers_impl.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/redistribute/moves_impl.h>

#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>

#include <memory>
#include <optional>
#include <utility>

namespace dtensor::detail {
namespace {

// Expresses `placement`, that of the step's mesh dimension before or after the
// step, as in last_sharding().
std::optional<Placement>
as_last(const Spec& spec, const Step& step, const Placement& placement) {
  return last_sharding(
      {spec.sizes(), spec.mesh().shape()},
      step.before,
      step.mesh_dims[0],
      placement);
}

// Consecutive shards of a tensor dimension over one mesh dimension. The tensor
// dimension is that of the local tensor when the mesh dimension is R.
struct DimShards {
  DimShards(const Spec& spec, const Step& step, const Placement& placement)
      : sharding(as_last(spec, step, placement).value()),
        ranks(spec.mesh().size(step.mesh_dims[0])) {
    Placements gathered = step.before;
    gathered[static_cast<size_t>(step.mesh_dims[0])] = Replicate();
    size = total_size(local_intervals(
        spec.sizes()[static_cast<size_t>(placement.dim())],
        placement.dim(),
        spec.mesh().shape(),
        gathered,
        *spec.mesh().get_coordinate()));
  }

  int64_t dim() const {
    return sharding.dim();
  }
  Interval shard(int64_t rank) const {
    return chunk(size, ranks, rank, sharding.unit());
  }
  Sizes sizes() const {
    Sizes sizes;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      sizes.push_back(shard(rank).size());
    }
    return sizes;
  }

  Placement sharding;
  int64_t ranks;
  int64_t size = 0;
};

// A step over one mesh dimension, between R, P and consecutive shards.
class SingleStep final : public LocalStep {
 public:
  SingleStep(const Spec& spec, const Step& step);

  at::Tensor execute(const at::Tensor& local) const override;
  PendingPtr enter(at::Tensor&& local) const override;
  at::Tensor finish(const at::Tensor& received) const override {
    return received;
  }

 private:
  at::Tensor slice(const at::Tensor& local) const;
  at::Tensor partition(const at::Tensor& local) const;
  at::Tensor pad(const at::Tensor& local) const;
  // Returns the sizes of the shards before the step, if the group would
  // otherwise exchange them.
  Sizes exchanged_sizes() const;

  StepKind kind_;
  Group* group_ = nullptr; // null if the step sends nothing
  int64_t my_rank_;
  // The reduction before the step, or after it for partition and pad.
  ReduceOp reduce_op_ = ReduceOp::kSum;
  // The shards before and after the step, if the placement is sharded.
  std::optional<DimShards> from_;
  std::optional<DimShards> to_;
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
    from_.emplace(spec, step, before);
    from_sizes_ = from_->sizes();
  }
  if (after.is_sharded()) {
    to_.emplace(spec, step, after);
    if (!to_->sharding.is_chunk()) {
      scattered_sizes_ = to_->sizes();
    }
  }
}

Sizes SingleStep::exchanged_sizes() const {
  return group_->exchanges_sizes() ? from_sizes_ : Sizes();
}

at::Tensor SingleStep::slice(const at::Tensor& local) const {
  const Interval mine = to_->shard(my_rank_);
  return local.narrow(to_->dim(), mine.begin, mine.size());
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
      resized(local.sizes(), from_->dim(), from_->size),
      neutral_element(reduce_op_),
      local.options());
  const Interval mine = from_->shard(my_rank_);
  padded.narrow(from_->dim(), mine.begin, mine.size()).copy_(local);
  return padded;
}

at::Tensor SingleStep::execute(const at::Tensor& local) const {
  switch (kind_) {
    case StepKind::kSlice:
      return slice(local);
    case StepKind::kAllGather:
      return group_->all_gather(
          local.contiguous(), from_->dim(), exchanged_sizes());
    case StepKind::kAllToAll:
      return group_->shard_dim_alltoall(
          local, from_->dim(), to_->dim(), exchanged_sizes());
    case StepKind::kReduceScatter:
      return group_->reduce_scatter(
          local.contiguous(), to_->dim(), reduce_op_, scattered_sizes_);
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
                std::move(local), from_->dim(), from_->size);
    case StepKind::kReduceScatter:
      return group_->reduce_scatter_async(
          std::move(local),
          to_->dim(),
          reduce_op_,
          /*out=*/{},
          scattered_sizes_);
    case StepKind::kAllReduce:
      return group_->all_reduce_async(std::move(local), reduce_op_);
    case StepKind::kAllToAll:
      return group_->shard_dim_alltoall_async(
          std::move(local), from_->dim(), to_->dim(), exchanged_sizes());
    default:
      TORCH_INTERNAL_ASSERT(false, "redistribute: not a collective");
  }
}

// True for steps that are not a SingleStep: over several mesh dimensions, with
// shards that are not consecutive or not the last ones of their tensor
// dimension, and exchanges other than from one dimension to the chunks of
// another.
bool is_joint(const Spec& spec, const Step& step) {
  if (step.mesh_dims.size() > 1) {
    return true;
  }
  const auto at = static_cast<size_t>(step.mesh_dims[0]);
  const auto fits = [&](const Placement& placement) {
    const auto last = as_last(spec, step, placement);
    return last && last->is_shard();
  };
  const Placement& before = step.before[at];
  const Placement& after = step.after[at];
  if ((before.is_sharded() && !fits(before)) ||
      (after.is_sharded() && !fits(after))) {
    return true;
  }
  return step.kind == StepKind::kAllToAll &&
      (!is_permutation(step) || before.dim() == after.dim() ||
       !as_last(spec, step, after)->is_chunk());
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
