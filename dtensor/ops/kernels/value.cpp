// SPDX-License-Identifier: BSD-3-Clause
// Operators that return a plain value, equal on all ranks because programs
// branch on it. Also operators whose number of result elements depends on
// values.
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/masked_scatter.h>
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>
#include <ATen/ops/tensor_split.h>
#include <dtensor/error.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
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

#include <algorithm>
#include <optional>
#include <string>

namespace dtensor {
namespace {

using namespace detail;

at::Tensor full_value(const c10::OperatorHandle& op, const at::Tensor& t) {
  if (!is_dtensor(t)) {
    return t;
  }
  const auto& spec = spec_of(t);
  DTENSOR_CHECK(
      spec->mesh().contains_this_rank(),
      "[{}] has no value on rank {}, which is outside the mesh {}. Call it on "
      "ranks of the mesh only.",
      op.schema().name(),
      spec->mesh().get_rank(),
      spec->mesh());
  return redistribute_local(local_of(t), spec, fully_replicated_spec(*spec));
}

// Returns an argument as a replicated local tensor, and reports its
// redistribution.
at::Tensor whole_argument(
    const c10::OperatorHandle& op,
    const at::Tensor& t,
    const char* argument) {
  if (is_dtensor(t)) {
    const auto& spec = spec_of(t);
    before_redistributing(
        op.schema().name(),
        argument,
        spec,
        replicated_placements(spec->mesh()));
  }
  return full_value(op, t);
}

void item(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto self = torch::jit::pop(*stack).toTensor();
  stack->emplace_back(
      at::_local_scalar_dense(whole_argument(op, self, "self")));
}

void equal(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto other = torch::jit::pop(*stack).toTensor();
  const auto self = torch::jit::pop(*stack).toTensor();
  // Values of meta tensors are unknown, so only a tensor and itself are equal.
  // Attention modules compare a tensor with itself.
  const bool same_without_data = self.is_meta() && self.is_same(other);
  // A rank outside the mesh has no elements that differ.
  stack->emplace_back(
      same_without_data || is_outside_mesh(self) || is_outside_mesh(other) ||
      (self.sizes() == other.sizes() &&
       at::_local_scalar_dense(full_value(op, at::eq(self, other).all()))
           .toBool()));
}

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
        "one mesh.",
        name,
        *first,
        *spec_of(t));
  });
  return first;
}

// Runs the operator on replicated arguments: the number of result elements
// depends on all values. The results are replicated.
void on_whole(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
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

// Kernel of tensor_split. The split positions are read from memory; `self` may
// have any layout.
void tensor_split(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto dim = torch::jit::pop(*stack).toInt();
  const auto where = whole_argument(
      op, torch::jit::pop(*stack).toTensor(), "tensor_indices_or_sections");
  const auto self = torch::jit::pop(*stack).toTensor();
  DTENSOR_CHECK_VALUE(
      where.dim() <= 1 && where.scalar_type() == at::kLong,
      "[{}] split positions must be one int64 or a 1-d int64 tensor, got {} of "
      "shape {}. Pass a tensor of at most one dimension.",
      op.schema().name(),
      where.toString(),
      where.sizes());
  if (where.dim() == 0) {
    stack->emplace_back(
        at::tensor_split(self, at::_local_scalar_dense(where).toLong(), dim));
    return;
  }
  std::vector<int64_t> indices;
  for (const auto& index : where.unbind()) {
    indices.push_back(at::_local_scalar_dense(index).toLong());
  }
  stack->emplace_back(at::tensor_split(self, indices, dim));
}

} // namespace

DTENSOR_RULES(value) {
  for (const auto* name :
       {"nonzero",
        "masked_select",
        "masked_scatter_backward",
        "_unique",
        "_unique2",
        "unique_dim",
        "unique_consecutive",
        "unique_dim_consecutive",
        "repeat_interleave.Tensor"}) {
    rules.kernel(name, on_whole);
  }
  rules.kernel("masked_scatter", masked_scatter);
  rules.kernel("_local_scalar_dense", item);
  rules.kernel("equal", equal);
  rules.kernel("tensor_split.tensor_indices_or_sections", tensor_split);
  rules.keep_composite("allclose");
  rules.keep_composite("is_same_size");
}

namespace {

// Returns the layout of the counts: shards add up.
Placements counted(PlacementsRef placements) {
  Placements counts(placements.begin(), placements.end());
  for (auto& p : counts) {
    p = p.is_sharded() ? Placement(Partial(ReduceOp::kSum)) : Replicate();
  }
  return counts;
}

// Returns the layout in which the elements are counted, without partial sums.
Placements countable(PlacementsRef placements) {
  Placements kept(placements.begin(), placements.end());
  for (auto& p : kept) {
    p = p.is_partial() ? Placement(Replicate()) : p;
  }
  return kept;
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
  detail::KernelArgs args(op, *stack);
  const auto given = args.tensor("self");
  const auto weights = args.optional_tensor("weights");
  const bool shard = is_dtensor(given) && given.dim() == 1 &&
      (!weights || (is_dtensor(*weights) && weights->sizes() == given.sizes()));
  DTENSOR_CHECK_VALUE(
      shard,
      "[{}] needs a DTensor of one dimension, and weights of its size. Reshape "
      "them, or distribute the plain one.",
      args.name());
  const auto layout = countable(DTensor(given).placements());
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

DTENSOR_RULES(lookup_kernels) {
  rules.kernel("bincount", bincount);
}

} // namespace dtensor
