// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/redistribute/steps_impl.h>

#include <dtensor/comm/group/mesh_groups_impl.h>
#include <dtensor/comm/group/shard_buffers_impl.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/redistribute/moves_impl.h>

#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <c10/core/Scalar.h>

#include <algorithm>
#include <utility>

namespace dtensor::detail {
namespace {

// Returns the element with which a shard is padded to a term of a reduction.
double neutral_element(ReduceOp op) {
  return op == ReduceOp::kProduct ? 1 : 0;
}

Sizes counts_of(const std::vector<LocalSlice>& slices) {
  Sizes counts;
  for (const LocalSlice& slice : slices) {
    counts.push_back(numel(slice.sizes));
  }
  return counts;
}

// Returns the tensor dimensions that a step gathers and shards, if it exchanges
// consecutive shards of one dimension for the chunks of another.
std::optional<std::pair<int64_t, int64_t>> exchanged_chunks(
    const Spec& spec,
    const Step& step) {
  if (step.mesh_dims.size() > 1 || !is_permutation(step)) {
    return std::nullopt;
  }
  const auto last = [&](const Placements& placements) {
    return last_sharding(
        {spec.sizes(), spec.mesh().shape()},
        step.before,
        step.mesh_dims[0],
        placements[static_cast<size_t>(step.mesh_dims[0])]);
  };
  const auto before = last(step.before);
  const auto after = last(step.after);
  if (!before || !after || !before->is_shard() || !after->is_chunk() ||
      before->dim() == after->dim()) {
    return std::nullopt;
  }
  return std::pair(before->dim(), after->dim());
}

} // namespace

// The ranks that take part in a step, and the boxes that they hold.
struct LocalStep::Members {
  const Spec& spec;
  const Step& step;

  int64_t count() const {
    return ranks_over({spec.sizes(), spec.mesh().shape()}, step.mesh_dims);
  }

  // Returns this rank's position among the members.
  int64_t mine() const {
    int64_t number = 0;
    for (const int64_t dim : step.mesh_dims) {
      const auto at = static_cast<size_t>(dim);
      number = number * spec.mesh().shape()[at] +
          (*spec.mesh().get_coordinate())[at];
    }
    return number;
  }

  // Returns the indices of a tensor dimension that a member holds in a layout.
  Intervals indices(PlacementsRef placements, int64_t member, int64_t dim)
      const {
    const auto shape = spec.mesh().shape();
    const auto& mine = *spec.mesh().get_coordinate();
    Sizes coordinate(mine.begin(), mine.end());
    for (size_t i = step.mesh_dims.size(); i-- > 0;) {
      const auto at = static_cast<size_t>(step.mesh_dims[i]);
      coordinate[at] = member % shape[at];
      member /= shape[at];
    }
    return local_intervals(
        spec.sizes()[static_cast<size_t>(dim)],
        dim,
        shape,
        placements,
        coordinate);
  }

  IndexBox box(PlacementsRef placements, int64_t member) const {
    IndexBox box;
    for (int64_t dim = 0; dim < spec.dim(); ++dim) {
      box.push_back(indices(placements, member, dim));
    }
    return box;
  }

  // Returns, for each member, the slice of a local tensor with the indices
  // `local` that the member holds in `placements`.
  std::vector<LocalSlice> slices(
      const IndexBox& local,
      PlacementsRef placements) const {
    std::vector<LocalSlice> slices;
    for (int64_t member = 0; member < count(); ++member) {
      slices.push_back(slice_of(local, box(placements, member)));
    }
    return slices;
  }

  // Returns the tensor dimension along which the members' shards lie one after
  // the other in a local tensor of placements `gathered`, in the order of the
  // members; empty if there is none.
  std::optional<int64_t> dim_in_order(
      PlacementsRef sharded,
      PlacementsRef gathered) const {
    const auto dim = sharded[static_cast<size_t>(step.mesh_dims[0])].dim();
    for (const int64_t mesh_dim : step.mesh_dims) {
      if (sharded[static_cast<size_t>(mesh_dim)].dim() != dim) {
        return std::nullopt;
      }
    }
    const auto held = indices(gathered, mine(), dim);
    int64_t next = 0;
    for (int64_t member = 0; member < count(); ++member) {
      const Intervals at = offsets_in(held, indices(sharded, member, dim));
      if (at.empty()) {
        continue;
      }
      if (at.size() > 1 || at[0].begin != next) {
        return std::nullopt;
      }
      next = at[0].end;
    }
    return dim;
  }

  Sizes sizes_along(int64_t dim, PlacementsRef sharded) const {
    Sizes sizes;
    for (int64_t member = 0; member < count(); ++member) {
      sizes.push_back(total_size(indices(sharded, member, dim)));
    }
    return sizes;
  }

  // Returns the reduction of the group. A mixture of sums and averages is a
  // sum, which `averaged` divides.
  ReduceOp reduce_op() const {
    const auto op_of = [&](int64_t dim) {
      return step.before[static_cast<size_t>(dim)].reduce_op();
    };
    const auto& dims = step.mesh_dims;
    const ReduceOp first = op_of(dims[0]);
    const bool is_uniform = std::ranges::all_of(
        dims, [&](int64_t dim) { return op_of(dim) == first; });
    return is_uniform ? first : ReduceOp::kSum;
  }

  // Returns the divisor of reduce_op()'s result; 1 if none is needed.
  int64_t averaged() const {
    int64_t ranks = 1;
    for (const int64_t dim : step.mesh_dims) {
      const auto at = static_cast<size_t>(dim);
      if (reduce_op() != ReduceOp::kAvg &&
          step.before[at].is_partial(ReduceOp::kAvg)) {
        ranks *= spec.mesh().shape()[at];
      }
    }
    return ranks;
  }
};

LocalStep::LocalStep(const Spec& from, const Step& step) : kind_(step.kind) {
  const Members members{from, step};
  if (collective_of(kind_)) {
    group_ = &joint_group(from.mesh(), step.mesh_dims);
  }
  is_first_ = members.mine() == 0;
  prepare(members);
  for (const LocalSlice& slice : received_) {
    received_shapes_.push_back(slice.sizes);
  }
}

void LocalStep::prepare(const Members& members) {
  const Step& step = members.step;
  const IndexBox held = members.box(step.before, members.mine());
  const IndexBox wanted = members.box(step.after, members.mine());
  for (const Intervals& intervals : wanted) {
    result_sizes_.push_back(total_size(intervals));
  }
  switch (kind_) {
    case StepKind::kSlice:
      sent_ = {slice_of(held, wanted)};
      break;
    case StepKind::kPad:
      received_ = {slice_of(wanted, held)};
      [[fallthrough]];
    case StepKind::kPartition:
      reduce_op_ =
          step.after[static_cast<size_t>(step.mesh_dims[0])].reduce_op();
      break;
    case StepKind::kAllToAll:
      prepare_all_to_all(members, held, wanted);
      break;
    case StepKind::kAllGather:
      received_ = prepare_members(members, step.before, step.after, wanted);
      break;
    case StepKind::kReduceScatter:
      sent_ = prepare_members(members, step.after, step.before, held);
      [[fallthrough]];
    case StepKind::kAllReduce:
      reduce_op_ = members.reduce_op();
      averaged_ = members.averaged();
      break;
  }
}

std::vector<LocalSlice> LocalStep::prepare_members(
    const Members& members,
    PlacementsRef sharded,
    PlacementsRef gathered,
    const IndexBox& box) {
  dim_ = members.dim_in_order(sharded, gathered);
  if (!dim_) {
    auto slices = members.slices(box, sharded);
    member_sizes_ = counts_of(slices);
    return slices;
  }
  auto sizes = members.sizes_along(*dim_, sharded);
  const int64_t total = total_size(box[static_cast<size_t>(*dim_)]);
  const bool is_default = kind_ == StepKind::kAllGather
      ? !group_->exchanges_sizes()
      : sizes == chunk_sizes(total, members.count());
  member_sizes_ = is_default ? Sizes() : std::move(sizes);
  return {};
}

void LocalStep::prepare_all_to_all(
    const Members& members,
    const IndexBox& held,
    const IndexBox& wanted) {
  const Step& step = members.step;
  if (const auto dims = exchanged_chunks(members.spec, step)) {
    dim_ = dims->first;
    shard_dim_ = dims->second;
    if (group_->exchanges_sizes()) {
      member_sizes_ = members.sizes_along(*dim_, step.before);
    }
    return;
  }
  sent_ = members.slices(held, step.after);
  received_ = members.slices(wanted, step.before);
}

std::vector<at::Tensor> LocalStep::parts_to_send(
    const at::Tensor& local) const {
  std::vector<at::Tensor> parts;
  parts.reserve(sent_.size());
  for (const LocalSlice& slice : sent_) {
    parts.push_back(read_slice(local, slice).contiguous());
  }
  return parts;
}

// Joins the slices received from all members.
at::Tensor LocalStep::assemble(const std::vector<at::Tensor>& parts) const {
  at::Tensor result = at::empty(result_sizes_, parts[0].options());
  for (size_t member = 0; member < parts.size(); ++member) {
    write_slice(result, received_[member], parts[member]);
  }
  return result;
}

// Returns the input of an all_gather or reduce_scatter.
at::Tensor LocalStep::payload(at::Tensor local) const {
  if (dim_) {
    return local;
  }
  if (kind_ == StepKind::kReduceScatter) {
    return in_one_buffer(parts_to_send(local));
  }
  at::Tensor flat = local.contiguous().view({-1});
  local.reset(); // so that the collective may read `flat` in place
  return flat;
}

at::Tensor LocalStep::partition(const at::Tensor& local) const {
  switch (reduce_op_) {
    case ReduceOp::kSum:
    case ReduceOp::kProduct:
    case ReduceOp::kBxor:
      return is_first_ ? local
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

at::Tensor LocalStep::pad(const at::Tensor& local) const {
  at::Tensor padded =
      at::full(result_sizes_, neutral_element(reduce_op_), local.options());
  write_slice(padded, received_[0], local);
  return padded;
}

at::Tensor LocalStep::execute(const at::Tensor& local) const {
  const auto dim = dim_.value_or(0);
  switch (kind_) {
    case StepKind::kSlice:
      return read_slice(local, sent_[0]);
    case StepKind::kAllGather:
      return finish(
          group_->all_gather(payload(local.contiguous()), dim, member_sizes_));
    case StepKind::kAllToAll:
      return shard_dim_
          ? group_->shard_dim_alltoall(local, dim, *shard_dim_, member_sizes_)
          : assemble(
                group_->all_to_all(parts_to_send(local), received_shapes_));
    case StepKind::kReduceScatter:
      return finish(group_->reduce_scatter(
          payload(local.contiguous()), dim, reduce_op_, member_sizes_));
    case StepKind::kAllReduce:
      return finish(group_->all_reduce(local.contiguous(), reduce_op_));
    case StepKind::kPartition:
      return partition(local);
    case StepKind::kPad:
      return pad(local);
  }
  TORCH_INTERNAL_ASSERT(false, "redistribute: an unknown step");
}

PendingPtr LocalStep::enter(at::Tensor&& local) const {
  const auto dim = dim_.value_or(0);
  switch (kind_) {
    case StepKind::kAllReduce:
      return group_->all_reduce_async(std::move(local), reduce_op_);
    case StepKind::kAllToAll:
      return shard_dim_ ? group_->shard_dim_alltoall_async(
                              std::move(local), dim, *shard_dim_, member_sizes_)
                        : group_->all_to_all_async(
                              in_one_buffer(parts_to_send(local)),
                              counts_of(sent_),
                              counts_of(received_));
    case StepKind::kAllGather:
      return member_sizes_.empty()
          ? group_->all_gather_async(
                payload(std::move(local)),
                dim,
                result_sizes_[static_cast<size_t>(dim)])
          : group_->all_gather_async(
                payload(std::move(local)), dim, member_sizes_);
    case StepKind::kReduceScatter:
      return group_->reduce_scatter_async(
          payload(std::move(local)),
          dim,
          reduce_op_,
          /*out=*/{},
          member_sizes_);
    default:
      TORCH_INTERNAL_ASSERT(false, "redistribute: not a collective");
  }
}

at::Tensor LocalStep::finish(at::Tensor received) const {
  if (kind_ == StepKind::kAllReduce || kind_ == StepKind::kReduceScatter) {
    if (kind_ == StepKind::kReduceScatter && !dim_) {
      received = received.view(result_sizes_);
    }
    return averaged_ == 1 ? std::move(received)
                          : at::div(received, at::Scalar(averaged_));
  }
  return dim_ ? std::move(received)
              : assemble(out_of_buffer(received, received_shapes_));
}

} // namespace dtensor::detail
