// SPDX-License-Identifier: BSD-3-Clause
// Embedding look-up in the rows that this rank holds.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/global_indices_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/scopes/replicated_impl.h>
#include <dtensor/tensor/meta_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/_to_copy.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/unsqueeze.h>
#include <ATen/ops/zeros.h>

namespace dtensor {
namespace {

void check_in_range(
    const KernelArgs& args,
    const at::Tensor& indices,
    int64_t rows) {
  const auto outside = indices.lt(0).logical_or_(indices.ge(rows));
  DTENSOR_CHECK_INDEX(
      !outside.any().item<bool>(),
      "[{}] index out of range: the table has {}. Look up indices from 0 to "
      "{}.",
      args.op().schema().name(),
      detail::pluralize(rows, "row"),
      rows - 1);
}

// Looks up rows. LibTorch's second derivative of an embedding fails if no row
// is looked up, which can happen on a single rank. The empty result is not a
// view of the table, since the graph keeps it, and the table may be written
// before the backward pass.
at::Tensor look_up(
    const at::Tensor& weight,
    const at::Tensor& rows,
    int64_t padding_idx,
    bool scale_grad_by_freq) {
  return rows.numel() == 0
      ? weight.narrow(0, 0, 0).clone()
      : at::embedding(weight, rows, padding_idx, scale_grad_by_freq);
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

} // namespace

void detail::embedding_local(KernelArgs& args, const Decision& decision) {
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      !args.flag("sparse"),
      "[{}] sparse gradients are not supported on DTensors. Use sparse=false.",
      args.op().schema().name());
  const auto& spec = *decision.inputs[0];
  const auto weight = args.tensor("weight");
  const auto indices = args.tensor("indices");
  check_in_range(args, indices, spec.sizes()[0]);
  const auto rows = local_intervals(spec, 0);
  const auto local = to_local_indices(indices.reshape(-1), rows);
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

namespace {

// one_hot of ids in any layout: each rank compares its local ids with all
// classes. LibTorch's decomposition would write into a plain tensor.

constexpr const char* kWhere = "aten::one_hot";

// Returns the number of classes, and throws for ids that the plain operator
// rejects. All ranks compare the same numbers, so all throw or none.
int64_t checked_classes(const at::Tensor& ids, int64_t num_classes) {
  const auto& spec = *detail::spec_of(ids);
  if (ids.numel() == 0) {
    DTENSOR_CHECK(
        num_classes > 0,
        "[{}] the ids, {}, are empty, so the number of classes cannot be "
        "inferred. Pass num_classes.",
        kWhere,
        spec);
    return num_classes;
  }
  const auto least = at::min(ids).item<int64_t>();
  const auto greatest = at::max(ids).item<int64_t>();
  DTENSOR_CHECK(
      least >= 0 && (num_classes < 0 || greatest < num_classes),
      "[{}] the ids, {}, are from {} to {}, but the number of classes is {}. "
      "Pass ids of at least 0 and below that number.",
      kWhere,
      spec,
      least,
      greatest,
      num_classes);
  return num_classes < 0 ? greatest + 1 : num_classes;
}

void one_hot(const c10::OperatorHandle& /*op*/, torch::jit::Stack* stack) {
  const auto num_classes = torch::jit::pop(*stack).toInt();
  const auto ids = torch::jit::pop(*stack).toTensor();
  const auto& spec = *detail::spec_of(ids);
  DTENSOR_CHECK(
      spec.dtype() == at::kLong,
      "[{}] the ids are {}. Convert them to int64.",
      kWhere,
      spec);
  const auto classes = detail::place_plain(
      at::arange(
          checked_classes(ids, num_classes),
          at::TensorOptions(at::kLong).device(spec.mesh().device_type())),
      spec);
  stack->emplace_back(
      at::_to_copy(at::eq(at::unsqueeze(ids, -1), classes), at::kLong));
}

} // namespace

DTENSOR_RULES(one_hot) {
  rules.kernel("one_hot", one_hot);
}

} // namespace dtensor
