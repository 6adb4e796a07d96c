// SPDX-License-Identifier: BSD-3-Clause
// Steps over several mesh dimensions, and steps on shards that are not
// consecutive or not the last ones of their tensor dimension.
#include <dtensor/redistribute/steps_impl.h>

#include <dtensor/comm/group/mesh_groups_impl.h>
#include <dtensor/comm/group/shard_buffers_impl.h>
#include <dtensor/redistribute/local_slice_impl.h>
#include <dtensor/redistribute/moves_impl.h>

#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/Scalar.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace dtensor::detail {
namespace {

// The ranks that take part in a step, and the boxes that they hold.
struct Members {
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

Sizes counts_of(const std::vector<LocalSlice>& slices) {
  Sizes counts;
  for (const LocalSlice& slice : slices) {
    counts.push_back(numel(slice.sizes));
  }
  return counts;
}

class JointStep final : public LocalStep {
 public:
  explicit JointStep(const Members& members);

  at::Tensor execute(const at::Tensor& local) const override;
  PendingPtr enter(at::Tensor&& local) const override;
  at::Tensor finish(const at::Tensor& received) const override;

 private:
  // Sets the arguments of all_gather or reduce_scatter. `gathered` are the
  // placements in which a rank holds `box`, the indices of all members. Returns
  // the members' slices of it if the step sends flat buffers.
  std::vector<LocalSlice> prepare_members(
      const Members& members,
      PlacementsRef sharded,
      PlacementsRef gathered,
      const IndexBox& box);
  at::Tensor payload(const at::Tensor& local) const;
  std::vector<at::Tensor> parts_to_send(const at::Tensor& local) const;
  at::Tensor assemble(const std::vector<at::Tensor>& parts) const;

  StepKind kind_;
  Group* group_ = nullptr; // null if the step sends nothing
  Sizes result_sizes_;
  // Slices of the local tensor that each member receives.
  std::vector<LocalSlice> sent_;
  // Slices of the result that the members' data fill.
  std::vector<LocalSlice> received_;
  std::vector<Sizes> received_shapes_;
  // Reduction of the step; for kPad, of the result.
  ReduceOp reduce_op_ = ReduceOp::kSum;
  int64_t averaged_ = 1;
  // Arguments of all_gather and reduce_scatter. The dimension is empty if the
  // members' shards are not consecutive; the step then sends flat buffers.
  std::optional<int64_t> dim_;
  Sizes member_sizes_;
};

JointStep::JointStep(const Members& members) : kind_(members.step.kind) {
  const Step& step = members.step;
  const IndexBox held = members.box(step.before, members.mine());
  const IndexBox wanted = members.box(step.after, members.mine());
  for (const Intervals& intervals : wanted) {
    result_sizes_.push_back(total_size(intervals));
  }
  if (collective_of(kind_)) {
    group_ = &joint_group(members.spec.mesh(), step.mesh_dims);
  }
  switch (kind_) {
    case StepKind::kSlice:
      sent_ = {slice_of(held, wanted)};
      break;
    case StepKind::kPad:
      received_ = {slice_of(wanted, held)};
      reduce_op_ =
          step.after[static_cast<size_t>(step.mesh_dims[0])].reduce_op();
      break;
    case StepKind::kAllToAll:
      sent_ = members.slices(held, step.after);
      received_ = members.slices(wanted, step.before);
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
    case StepKind::kPartition:
      TORCH_INTERNAL_ASSERT(false, "redistribute: not a joint step");
  }
  for (const LocalSlice& slice : received_) {
    received_shapes_.push_back(slice.sizes);
  }
}

std::vector<LocalSlice> JointStep::prepare_members(
    const Members& members,
    PlacementsRef sharded,
    PlacementsRef gathered,
    const IndexBox& box) {
  dim_ = members.dim_in_order(sharded, gathered);
  if (dim_) {
    member_sizes_ = members.sizes_along(*dim_, sharded);
    return {};
  }
  auto slices = members.slices(box, sharded);
  member_sizes_ = counts_of(slices);
  return slices;
}

std::vector<at::Tensor> JointStep::parts_to_send(
    const at::Tensor& local) const {
  std::vector<at::Tensor> parts;
  parts.reserve(sent_.size());
  for (const LocalSlice& slice : sent_) {
    parts.push_back(read_slice(local, slice).contiguous());
  }
  return parts;
}

// Joins the slices received from all members.
at::Tensor JointStep::assemble(const std::vector<at::Tensor>& parts) const {
  at::Tensor result = at::empty(result_sizes_, parts[0].options());
  for (size_t member = 0; member < parts.size(); ++member) {
    write_slice(result, received_[member], parts[member]);
  }
  return result;
}

// Returns the input of an all_gather or reduce_scatter.
at::Tensor JointStep::payload(const at::Tensor& local) const {
  if (dim_) {
    return local.contiguous();
  }
  return kind_ == StepKind::kAllGather ? local.contiguous().view({-1})
                                       : in_one_buffer(parts_to_send(local));
}

at::Tensor JointStep::execute(const at::Tensor& local) const {
  switch (kind_) {
    case StepKind::kAllReduce:
      return finish(group_->all_reduce(local.contiguous(), reduce_op_));
    case StepKind::kAllToAll:
      return assemble(
          group_->all_to_all(parts_to_send(local), received_shapes_));
    case StepKind::kAllGather:
      return finish(
          group_->all_gather(payload(local), dim_.value_or(0), member_sizes_));
    case StepKind::kReduceScatter:
      return finish(group_->reduce_scatter(
          payload(local), dim_.value_or(0), reduce_op_, member_sizes_));
    case StepKind::kSlice:
      return read_slice(local, sent_[0]);
    default: { // kPad
      at::Tensor padded =
          at::full(result_sizes_, neutral_element(reduce_op_), local.options());
      write_slice(padded, received_[0], local);
      return padded;
    }
  }
}

PendingPtr JointStep::enter(at::Tensor&& local) const {
  const at::Tensor owned = std::move(local);
  switch (kind_) {
    case StepKind::kAllReduce:
      return group_->all_reduce_async(owned.contiguous(), reduce_op_);
    case StepKind::kAllToAll:
      return group_->all_to_all_async(
          in_one_buffer(parts_to_send(owned)),
          counts_of(sent_),
          counts_of(received_));
    case StepKind::kAllGather:
      return group_->all_gather_async(
          payload(owned), dim_.value_or(0), member_sizes_);
    case StepKind::kReduceScatter:
      return group_->reduce_scatter_async(
          payload(owned),
          dim_.value_or(0),
          reduce_op_,
          /*out=*/{},
          member_sizes_);
    default:
      TORCH_INTERNAL_ASSERT(false, "redistribute: not a collective");
  }
}

at::Tensor JointStep::finish(const at::Tensor& received) const {
  const auto scaled = [&](const at::Tensor& reduced) {
    return averaged_ == 1 ? reduced : at::div(reduced, at::Scalar(averaged_));
  };
  switch (kind_) {
    case StepKind::kAllReduce:
      return scaled(received);
    case StepKind::kReduceScatter:
      return scaled(received.view(result_sizes_));
    case StepKind::kAllGather:
      return dim_ ? received
                  : assemble(out_of_buffer(received, received_shapes_));
    default:
      return assemble(out_of_buffer(received, received_shapes_));
  }
}

} // namespace

LocalStepPtr prepare_joint_step(const Spec& from, const Step& step) {
  return std::make_unique<JointStep>(Members{from, step});
}

} // namespace dtensor::detail
