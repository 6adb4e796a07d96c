// SPDX-License-Identifier: BSD-3-Clause
// Operators whose results are values, which must be equal on all ranks because
// programs branch on them. Also is_pinned().
#include <dtensor/ops/kernels/kernel_args_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/scopes/explicit_redistribution_impl.h>
#include <dtensor/redistribute/execute.h>
#include <dtensor/tensor/meta_impl.h>

#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/tensor_split.h>

namespace dtensor {
namespace {

using namespace detail;

at::Tensor full_value(const KernelArgs& args, const at::Tensor& t) {
  if (!is_dtensor(t)) {
    return t;
  }
  const auto& spec = spec_of(t);
  DTENSOR_CHECK(
      spec->mesh().contains_this_rank(),
      "[{}] has no value on rank {}, which is outside the mesh {}. Call it on "
      "ranks of the mesh only.",
      args.base_name(),
      spec->mesh().get_rank(),
      spec->mesh());
  return redistribute_local(local_of(t), spec, fully_replicated_spec(*spec));
}

void item(KernelArgs& args) {
  args.returns(at::_local_scalar_dense(
      replicated_argument(args, args.tensor("self"), "self")));
}

void equal(KernelArgs& args) {
  const auto self = args.tensor("self");
  const auto other = args.tensor("other");
  // Values of meta tensors are unknown, and so are values on a rank outside the
  // mesh. Such a tensor is equal only to itself. Attention modules compare a
  // tensor with itself.
  const bool same_without_data =
      self.is_same(other) && (self.is_meta() || is_outside_mesh(self));
  args.returns(
      same_without_data ||
      (self.sizes() == other.sizes() &&
       at::_local_scalar_dense(full_value(args, at::eq(self, other).all()))
           .toBool()));
}

// Kernel of tensor_split. The split positions are read from memory; `self` may
// have any layout.
void tensor_split(KernelArgs& args) {
  constexpr const char* kPositions = "tensor_indices_or_sections";
  const auto self = args.tensor("self");
  const auto where =
      replicated_argument(args, args.tensor(kPositions), kPositions);
  const auto dim = args.integer("dim");
  DTENSOR_CHECK_VALUE(
      where.dim() <= 1 && where.scalar_type() == at::kLong,
      "[{}] split positions must be one int64 or a 1-d int64 tensor, got {} of "
      "shape {}. Pass a tensor of at most one dimension.",
      args.base_name(),
      where.toString(),
      where.sizes());
  if (where.dim() == 0) {
    args.returns(
        at::tensor_split(self, at::_local_scalar_dense(where).toLong(), dim));
    return;
  }
  std::vector<int64_t> indices;
  for (const auto& index : where.unbind()) {
    indices.push_back(at::_local_scalar_dense(index).toLong());
  }
  args.returns(at::tensor_split(self, indices, dim));
}

void is_pinned(KernelArgs& args) {
  args.returns(local_of(args.tensor("self"))
                   .is_pinned(args.at("device").toOptional<at::Device>()));
}

} // namespace

LocalTensor detail::redistributed(
    std::string_view op,
    const char* argument,
    const at::Tensor& t,
    PlacementsRef to) {
  const auto& from = spec_of(t);
  before_redistributing(op, argument, from, to);
  auto spec = from->with_placements(to);
  auto local = redistribute_local(local_of(t), from, spec);
  return {std::move(local), std::move(spec)};
}

at::Tensor detail::replicated_argument(
    const KernelArgs& args,
    const at::Tensor& t,
    const char* argument) {
  if (is_dtensor(t)) {
    const auto& spec = spec_of(t);
    before_redistributing(
        args.base_name(), argument, spec, replicated_placements(spec->mesh()));
  }
  return full_value(args, t);
}

DTENSOR_RULES(value) {
  rules.kernel("_local_scalar_dense", with_args(item));
  rules.kernel("equal", with_args(equal));
  rules.kernel("is_pinned", with_args(is_pinned));
  rules.kernel(
      "tensor_split.tensor_indices_or_sections", with_args(tensor_split));
  rules.keep_composite("allclose");
  rules.keep_composite("is_same_size");
}

} // namespace dtensor
