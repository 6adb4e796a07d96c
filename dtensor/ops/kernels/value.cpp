// SPDX-License-Identifier: BSD-3-Clause
// Operators whose results are values, which must be equal on all ranks because
// programs branch on them. Also is_pinned().
#include <dtensor/ops/kernels/replicated_argument_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/scopes/explicit_redistribution_impl.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/meta_impl.h>

#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/tensor_split.h>

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

void item(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto self = torch::jit::pop(*stack).toTensor();
  stack->emplace_back(
      at::_local_scalar_dense(replicated_argument(op, self, "self")));
}

void equal(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto other = torch::jit::pop(*stack).toTensor();
  const auto self = torch::jit::pop(*stack).toTensor();
  // Values of meta tensors are unknown, and so are values on a rank outside the
  // mesh. Such a tensor is equal only to itself. Attention modules compare a
  // tensor with itself.
  const bool same_without_data =
      self.is_same(other) && (self.is_meta() || is_outside_mesh(self));
  stack->emplace_back(
      same_without_data ||
      (self.sizes() == other.sizes() &&
       at::_local_scalar_dense(full_value(op, at::eq(self, other).all()))
           .toBool()));
}

// Kernel of tensor_split. The split positions are read from memory; `self` may
// have any layout.
void tensor_split(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto dim = torch::jit::pop(*stack).toInt();
  const auto where = replicated_argument(
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

void is_pinned(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  const auto device = torch::jit::pop(*stack).toOptional<at::Device>();
  const auto self = torch::jit::pop(*stack).toTensor();
  stack->emplace_back(local_of(self).is_pinned(device));
}

} // namespace

at::Tensor detail::replicated_argument(
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

DTENSOR_RULES(value) {
  rules.kernel("_local_scalar_dense", item);
  rules.kernel("equal", equal);
  rules.kernel("is_pinned", is_pinned);
  rules.kernel("tensor_split.tensor_indices_or_sections", tensor_split);
  rules.keep_composite("allclose");
  rules.keep_composite("is_same_size");
}

} // namespace dtensor
