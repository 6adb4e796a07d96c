// SPDX-License-Identifier: BSD-3-Clause
// Operators whose number of result elements depends on values. Those that keep
// the elements of a sharded tensor for which a condition holds (nonzero,
// masked_select) return Shard(0): each rank selects from its rows, and the
// ranks exchange selected rows, so that each has an even part. bincount counts
// the elements of each shard. The others compute on replicated operands.
// (mask_index.cpp has x[mask], and unique.cpp has unique.)
#include <dtensor/ops/kernels/whole_argument_impl.h>

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/error.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/kernels/row_exchange_impl.h>
#include <dtensor/ops/kernels/selected_rows_impl.h>
#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/scopes/explicit_redistribution_impl.h>
#include <dtensor/ops/scopes/plain_operand_impl.h>
#include <dtensor/ops/scopes/replicated_impl.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/dtensor.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>

#include <ATen/ops/bincount.h>
#include <ATen/ops/broadcast_tensors.h>
#include <ATen/ops/index.h>
#include <ATen/ops/masked_scatter.h>
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>
#include <ATen/ops/nonzero.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace dtensor {
namespace {

using namespace detail;

// Returns the spec of the first DTensor among the arguments; the others must be
// on its mesh.
SpecPtr common_spec(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const auto num_args = op.schema().arguments().size();
  const auto args = last_args(stack, num_args);
  auto first = first_spec(args);
  const auto name = KernelArgs(op, stack).name();
  visit_tensors(args, [&](const at::Tensor& t, size_t arg, int) {
    if (!is_dtensor(t)) {
      check_plain_operand(op.schema(), t, arg, *first);
      return;
    }
    DTENSOR_CHECK(
        spec_of(t)->mesh() == first->mesh(),
        "[{}] the operands live on different meshes: {} and {}. Bring them to "
        "one mesh: from_local(x.full_tensor(), mesh) replicates x on a mesh.",
        name,
        *first,
        *spec_of(t));
  });
  return first;
}

} // namespace

void detail::call_on_whole(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack) {
  const auto spec = common_spec(op, *stack);
  const auto num_args = op.schema().arguments().size();
  auto* const args = stack->data() + (stack->size() - num_args);
  map_tensors(args, num_args, [&](const at::Tensor& t, size_t i) {
    return whole_argument(op, t, op.schema().arguments()[i].name().c_str());
  });
  op.callBoxed(stack);
  map_results(stack, op.schema().returns().size(), [&](at::Tensor t, size_t) {
    auto layout = replicated_spec(*spec, t);
    return wrap(std::move(t), std::move(layout));
  });
}

namespace {

// Returns the mesh dimension along which each rank selects from its own rows:
// the first that shards rows, or else the first that shards. None if the tensor
// is not sharded, or if this rank has no values.
std::optional<int64_t> selecting_dim(const at::Tensor& t) {
  if (!is_dtensor(t) || t.is_meta() || t.dim() == 0 ||
      !spec_of(t)->mesh().contains_this_rank()) {
    return std::nullopt;
  }
  std::optional<int64_t> found;
  const auto placements = spec_of(t)->placements();
  for (size_t m = placements.size(); m-- > 0;) {
    if (placements[m].is_shard(0) || (!found && placements[m].is_sharded())) {
      found = static_cast<int64_t>(m);
    }
  }
  return found;
}

void nonzero(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto self = KernelArgs(op, *stack).tensor("self");
  const auto mesh_dim = selecting_dim(self);
  if (!mesh_dim) {
    return call_on_whole(op, stack);
  }
  torch::jit::drop(*stack, 1);
  const auto& from = spec_of(self);
  const auto& mesh = from->mesh();
  auto by_rows = replicated_placements(mesh);
  by_rows[static_cast<size_t>(*mesh_dim)] = Shard(0);
  const auto to = from->with_placements(by_rows);
  if (to != from) {
    before_redistributing(op.schema().name(), "self", from, by_rows);
  }
  const auto rows = redistribute_local(local_of(self), from, to);
  const auto found = at::nonzero(rows).contiguous();
  auto& group = get_group(mesh, *mesh_dim);
  const auto held = rows_of_ranks(*to, *mesh_dim);
  found.select(1, 0).add_(held[static_cast<size_t>(group.rank())].begin);
  auto has = ranges_of_ranks(group, found);
  const Sizes sizes{has.back().end, found.size(1)};
  auto spec = Spec::make(mesh, by_rows, sizes, at::kLong);
  auto local = even_shard(found, std::move(has), spec, *mesh_dim);
  stack->emplace_back(wrap(std::move(local), std::move(spec)));
}

// Kernel of masked_select, which is x[mask] of the broadcast operands.
void masked_select(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  KernelArgs args(op, *stack);
  const auto spec = common_spec(op, *stack);
  const auto mask = args.tensor("mask");
  if (mask.scalar_type() != at::kBool) {
    return call_on_whole(op, stack); // throws
  }
  const auto distributed = [&](const at::Tensor& t) {
    return is_dtensor(t) ? t
                         : from_local_autograd(t, replicated_spec(*spec, t));
  };
  auto operands = at::broadcast_tensors(
      {distributed(args.tensor("self")), distributed(mask)});
  if (operands[0].dim() == 0) {
    operands = {operands[0].unsqueeze(0), operands[1].unsqueeze(0)};
  }
  if (selects_on_shards(operands[0], operands[1])) {
    args.returns(select_on_shards(op, operands[0], operands[1], "mask"));
    return;
  }
  c10::List<std::optional<at::Tensor>> indices;
  indices.push_back(operands[1]);
  args.returns(at::index(operands[0], indices));
}

// Redistributes the result of masked_scatter to the layout of self. It was
// computed on replicated operands, since the full mask determines the position
// of each source element.
at::Tensor scattered(const SpecPtr& self, const at::Tensor& result) {
  auto from = replicated_spec(*self, result);
  const bool same_shape = self->sizes() == SizesRef(result.sizes());
  const auto to = same_shape
      ? from->with_placements(without_partial(self->placements()))
      : from;
  return wrap(redistribute_local(result, from, to), to);
}

void masked_scatter(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const KernelArgs args(op, *stack);
  auto self = args.tensor("self");
  const bool in_place = op.schema().name().back() == '_';
  const auto spec = common_spec(op, *stack);
  const auto result = at::masked_scatter(
      whole_argument(op, self, "self"),
      whole_argument(op, args.tensor("mask"), "mask"),
      whole_argument(op, args.tensor("source"), "source"));
  torch::jit::drop(*stack, op.schema().arguments().size());
  if (in_place) {
    self.copy_(scattered(spec, result));
    stack->push_back(self);
  } else {
    stack->emplace_back(scattered(spec, result));
  }
}

// Returns the layout of the counts: shards add up.
Placements counted(PlacementsRef placements) {
  Placements counts(placements.begin(), placements.end());
  for (auto& p : counts) {
    p = p.is_sharded() ? Placement(Partial(ReduceOp::kSum)) : Replicate();
  }
  return counts;
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
  KernelArgs args(op, *stack);
  const auto given = args.tensor("self");
  const auto weights = args.optional_tensor("weights");
  const bool shard = is_dtensor(given) && given.dim() == 1 &&
      (!weights || (is_dtensor(*weights) && weights->sizes() == given.sizes()));
  DTENSOR_CHECK_VALUE(
      shard,
      "[{}] needs a DTensor of one dimension, and weights of its size. Reshape "
      "them, or distribute the plain one.",
      args.name());
  const auto layout = without_partial(DTensor(given).placements());
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

DTENSOR_RULES(data_sized) {
  rules.kernel("masked_scatter_backward", call_on_whole);
  rules.kernel("repeat_interleave.Tensor", call_on_whole);
  rules.kernel("bincount", bincount);
  rules.kernel("nonzero", nonzero);
  rules.kernel("masked_select", masked_select).as_region();
  rules.kernel("masked_scatter", masked_scatter);
}

} // namespace dtensor
