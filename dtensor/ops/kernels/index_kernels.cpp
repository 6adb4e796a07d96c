// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/kernels/index_kernels_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/WrapDimMinimal.h>
#include <dtensor/layout/intervals_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/kernels/linear_map_impl.h>
#include <dtensor/ops/kernels/over_shards_impl.h>
#include <dtensor/tensor/layout_steps_impl.h>

#include <vector>

namespace dtensor::detail {

at::Tensor to_global_indices(const at::Tensor& local, const Intervals& held) {
  if (local.numel() == 0) {
    return local;
  }
  if (held.size() == 1) {
    return local + held[0].begin;
  }
  const auto table = at::tensor(indices_in(held), at::kLong).to(local.device());
  return table.index_select(0, local.reshape({-1})).view(local.sizes());
}

at::Tensor to_local_indices(const at::Tensor& global, const Intervals& held) {
  auto local = at::full_like(global, -1);
  int64_t before = 0;
  for (const auto& interval : held) {
    const auto is_held =
        global.ge(interval.begin).logical_and_(global.lt(interval.end));
    local = at::where(is_held, global - (interval.begin - before), local);
    before += interval.size();
  }
  return local;
}

namespace {

// Positions of picked elements in this rank's shard. The linear map picks
// elements from the shards of all ranks. Its adjoint scatters numbers into
// these shards.
struct Positions : LinearMap {
  at::Tensor local; // 0 for elements of other ranks
  at::Tensor here;  // true for elements of this rank
  std::vector<int64_t> shard_sizes;
  int64_t dim = 0;
  SpecPtr spec;

  at::Tensor apply(const at::Tensor& shard) const override {
    const auto found = shard.size(dim) == 0
        ? at::zeros(local.sizes(), shard.options())
        : shard.gather(dim, local).masked_fill(here.logical_not(), 0);
    return reduced_over_shards(found, *spec, dim, ReduceOp::kSum);
  }

  at::Tensor apply_adjoint(const at::Tensor& numbers) const override {
    const auto shard = at::zeros(shard_sizes, numbers.options());
    return shard.size(dim) == 0
        ? shard
        : shard.scatter_add(
              dim, local, numbers.masked_fill(here.logical_not(), 0));
  }
};

LinearMapPtr positions_in(
    const at::Tensor& shard,
    const at::Tensor& indices,
    int64_t dim,
    const SpecPtr& spec) {
  const auto local = to_local_indices(indices, local_intervals(*spec, dim));
  auto positions = c10::make_intrusive<Positions>();
  positions->here = local.ge(0);
  positions->local = local.clamp_min(0);
  positions->shard_sizes = shard.sizes().vec();
  positions->dim = dim;
  positions->spec = spec;
  return positions;
}

} // namespace

at::Tensor picked_from_shards(
    const at::Tensor& local,
    const at::Tensor& values,
    const at::Tensor& indices,
    int64_t dim,
    const SpecPtr& spec) {
  return values.defined() && !records(local)
      ? values
      : apply_linear(local, positions_in(local, indices, dim, spec), values);
}

// Operators with indices of a sharded dimension: index_select, gather,
// index_copy, scatter and similar operators.

namespace {

// The operand "self" and the indices of a call.
struct IndexedShard {
  at::Tensor self;
  int64_t dim;
  int64_t size;     // global size of `dim`
  at::Tensor local; // -1 for indices of other ranks
  at::Tensor index;

  IndexedShard(const KernelArgs& args, const Decision& decision)
      : self(args.tensor("self")),
        dim(c10::maybe_wrap_dim(args.integer("dim"), self.dim())),
        size(decision.inputs[0]->sizes()[static_cast<size_t>(dim)]),
        index(args.tensor("index")) {
    if (args.base_name().starts_with("aten::index_fill")) {
      const auto from_end = index.lt(0).logical_and_(index.ge(-size));
      index = at::where(from_end, index + size, index);
    }
    local = to_local_indices(index, local_intervals(*decision.inputs[0], dim));
  }

  // Returns the shard with a row of zeros behind it.
  at::Tensor with_zeros() const {
    auto sizes = self.sizes().vec();
    sizes[static_cast<size_t>(dim)] = 1;
    return at::cat({self, at::zeros(sizes, self.options())}, dim);
  }

  // Returns the local indices, with `place` for the indices of other ranks.
  // LibTorch refuses indices that are out of range on all ranks.
  at::Tensor with_others_at(int64_t place) const {
    const auto is_inside = index.ge(0).logical_and_(index.lt(size));
    return at::where(is_inside, local.masked_fill(local.lt(0), place), index);
  }
};

} // namespace

void look_up_local(KernelArgs& args, const Decision& decision) {
  const IndexedShard shard(args, decision);
  args.set(
      "self",
      shard.self.size(shard.dim) == 0 ? shard.with_zeros() : shard.self);
  args.set("index", shard.with_others_at(0));
  auto is_elsewhere = shard.local.lt(0);
  if (args.base_name() == "aten::index_select") {
    is_elsewhere = along_dim(is_elsewhere, shard.dim, shard.self.dim());
  }
  auto result = args.compute().masked_fill(is_elsewhere, 0);
  if (shard.self.size(shard.dim) == 0 && shard.self.requires_grad() &&
      args.base_name() == "aten::gather") {
    // Saves self for the backward pass, so that a write to it in between fails
    // on this rank as on the others.
    const auto nothing = shard.index.narrow(shard.dim, 0, 0);
    result = result + shard.self.gather(shard.dim, nothing).sum();
  }
  args.returns(std::move(result));
}

void write_at_indices_local(KernelArgs& args, const Decision& decision) {
  const IndexedShard shard(args, decision);
  const auto length = shard.self.size(shard.dim);
  if (length == shard.size) {
    return args.run_operator();
  }
  args.set("self", shard.with_zeros());
  args.set("index", shard.with_others_at(length));
  const auto rows = args.compute().narrow(shard.dim, 0, length);
  const auto strides =
      dense_strides(rows.sizes(), decision.outputs[0]->strides());
  args.returns(
      at::empty_strided(rows.sizes(), strides, rows.options()).copy_(rows));
}

} // namespace dtensor::detail
