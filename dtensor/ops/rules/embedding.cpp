// SPDX-License-Identifier: BSD-3-Clause
// Embedding. A table may be cut by columns (the output is cut alike), or by
// rows: a rank then looks up the tokens whose rows it holds and leaves zeros
// for the others, and the output is a sum over ranks. Or the indices are cut.
#include <dtensor/ops/registry.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/rules/families_impl.h>
#include <dtensor/ops/rules/kernel_args_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

namespace dtensor {
namespace {

constexpr auto kSum = ReduceOp::kSum;

Strategies embedding(const OpCall& call, int64_t) {
  const auto indices_dim = call.inputs[1].dim();
  Strategies all = {
      {{Partial(kSum)}, {Shard(0), Replicate()}},
      {{Shard(indices_dim)}, {Shard(1), Replicate()}}};
  // A token's frequency is that in all indices.
  if (!call.bool_arg("scale_grad_by_freq")) {
    for (int64_t d = 0; d < indices_dim; ++d) {
      all.push_back({{Shard(d)}, {Replicate(), Shard(d)}});
    }
  }
  return all;
}

std::vector<OutputMeta> embedding_meta(const OpCall& call) {
  const auto& weight = *call.inputs[0].spec;
  DTENSOR_CHECK(
      weight.dim() == 2,
      call.name(),
      "'weight' must be 2-D, got ",
      weight,
      ". Reshape it.");
  const auto indices = call.inputs[1].sizes();
  Sizes sizes(indices.begin(), indices.end());
  sizes.push_back(weight.sizes()[1]);
  return {{sizes, contiguous_strides(sizes), weight.dtype(), true}};
}

// The local kernel needs to know which rows it holds, if not all.
void keep_weight_spec(const OpCall& call, Decision& decision) {
  decision.is_plain_call = !decision.layout_of(call, 0).cuts(0) &&
      numel(decision.layout_of(call, 1).local_sizes()) > 0 &&
      !call.bool_arg("sparse");
  if (decision.inputs[0] == nullptr && !decision.is_plain_call) {
    decision.inputs[0] = call.inputs[0].spec;
  }
}

Intervals rows_of(const Spec& weight) {
  return local_intervals(
      weight.sizes()[0],
      0,
      weight.mesh().shape(),
      weight.placements(),
      *weight.mesh().get_coordinate());
}

void check_in_range(
    const c10::OperatorHandle& op,
    const at::Tensor& indices,
    int64_t rows) {
  const auto outside = indices.lt(0).logical_or_(indices.ge(rows));
  DTENSOR_CHECK_INDEX(
      !outside.any().item<bool>(),
      op.schema().name(),
      "index out of range: the table has ",
      rows,
      " rows. Look up indices from 0 to ",
      rows - 1,
      ".");
}

// LibTorch's second derivative of an embedding fails where nothing is looked
// up, which is one rank's lot and not the whole's.
at::Tensor look_up(
    const at::Tensor& weight,
    const at::Tensor& rows,
    int64_t padding_idx,
    bool scale_grad_by_freq) {
  return rows.numel() == 0
      ? weight.narrow(0, 0, 0)
      : at::embedding(weight, rows, padding_idx, scale_grad_by_freq);
}

// Local row numbers of global ones; -1 for rows of other ranks.
at::Tensor to_local_rows(const at::Tensor& indices, const Intervals& rows) {
  auto local = at::full_like(indices, -1);
  int64_t before = 0;
  for (const auto& interval : rows) {
    const auto held =
        indices.ge(interval.begin).logical_and_(indices.lt(interval.end));
    local = at::where(held, indices - (interval.begin - before), local);
    before += interval.size();
  }
  return local;
}

int64_t to_local_row(int64_t row, const Intervals& rows) {
  int64_t before = 0;
  for (const auto& interval : rows) {
    if (row >= interval.begin && row < interval.end) {
      return row - interval.begin + before;
    }
    before += interval.size();
  }
  return -1;
}

void embedding_local(
    const c10::OperatorHandle& op,
    const Decision& decision,
    torch::jit::Stack* stack) {
  if (decision.is_plain_call) {
    op.callBoxed(stack);
    return;
  }
  detail::KernelArgs args(op, *stack);
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      !args.flag("sparse"),
      op.schema().name(),
      "sparse gradients are not supported on DTensors. Use sparse=false.");
  const auto& spec = *decision.inputs[0];
  const auto weight = args.tensor("weight");
  const auto indices = args.tensor("indices");
  check_in_range(op, indices, spec.sizes()[0]);
  const auto rows = rows_of(spec);
  const auto local = to_local_rows(indices.reshape(-1), rows);
  const auto mine = at::nonzero(local.ge(0)).squeeze(1);
  const auto found = look_up(
      weight,
      local.index_select(0, mine),
      to_local_row(args.integer("padding_idx"), rows),
      args.flag("scale_grad_by_freq"));
  const auto width = weight.size(1);
  auto sizes = indices.sizes().vec();
  sizes.push_back(width);
  auto output = at::zeros({indices.numel(), width}, weight.options())
                    .index_copy(0, mine, found)
                    .view(sizes);
  args.returns(std::move(output));
}

// grad_output, indices -> weight's gradient.
Strategies dense_backward(const OpCall& call, int64_t) {
  const auto indices_dim = call.inputs[1].dim();
  Strategies all = {
      {{Shard(1)}, {Shard(indices_dim), Replicate()}},
      {{Partial(kSum)}, {Partial(kSum), Replicate()}}};
  if (!call.bool_arg("scale_grad_by_freq")) {
    for (int64_t d = 0; d < indices_dim; ++d) {
      all.push_back({{Partial(kSum)}, {Shard(d), Shard(d)}});
    }
  }
  return all;
}

std::vector<OutputMeta> dense_backward_meta(const OpCall& call) {
  const auto& grad = *call.inputs[0].spec;
  const Sizes sizes{call.int_arg("num_weights"), grad.sizes().back()};
  return {{sizes, contiguous_strides(sizes), grad.dtype(), true}};
}

} // namespace

DTENSOR_RULES(embedding) {
  rules.dim_rule("embedding", embedding)
      .with_meta(embedding_meta)
      .with_localize(keep_weight_spec)
      .with_local_kernel(embedding_local)
      .as_region()
      .with_traits(
          {.boundary = BoundaryRole{
               .kind = BoundaryKind::kEmbedding, .input = 1, .parameter = 0}});
  rules.dim_rule("embedding_dense_backward", dense_backward)
      .with_meta(dense_backward_meta);
}

} // namespace dtensor
