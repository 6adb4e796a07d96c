// SPDX-License-Identifier: BSD-3-Clause
// Operators whose number of result elements depends on values. Operators that
// keep the elements of a sharded tensor that satisfy a condition (nonzero,
// masked_select) return Shard(0). Each rank selects from its rows, and the
// ranks exchange selected rows, so that each has an even shard. masked_scatter
// writes the rows of each rank, and bincount counts the elements of each shard.
// Other operators here compute on replicated operands. (mask_index.cpp has
// x[mask], and unique.cpp has unique.)
#include <dtensor/ops/kernels/kernel_args_impl.h>

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/error.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/index_kernels_impl.h>
#include <dtensor/ops/kernels/over_shards_impl.h>
#include <dtensor/ops/kernels/row_exchange_impl.h>
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

#include <ATen/ExpandUtils.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/broadcast_tensors.h>
#include <ATen/ops/constant_pad_nd.h>
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
SpecPtr common_spec(const KernelArgs& args) {
  auto first = first_spec(args.all());
  visit_tensors(args.all(), [&](const at::Tensor& t, size_t arg, int) {
    if (!is_dtensor(t)) {
      check_plain_operand(args.op().schema(), t, arg, *first);
      return;
    }
    check_same_mesh(args.name(), *first, *spec_of(t));
  });
  return first;
}

} // namespace

void detail::call_on_replicated(KernelArgs& args) {
  const auto spec = common_spec(args);
  const auto& schema = args.op().schema();
  args.map_tensors([&](const at::Tensor& t, const char* argument) {
    return replicated_argument(args, t, argument);
  });
  args.run_operator();
  map_results(
      &args.stack(), schema.returns().size(), [&](at::Tensor t, size_t) {
        auto layout = replicated_spec(*spec, t);
        return wrap(std::move(t), std::move(layout));
      });
}

namespace {

// Returns the mesh dimension along which each rank selects from its own rows.
// This is the first mesh dimension that shards rows, or else the first that
// shards any dimension. Empty if the tensor is not sharded, or if this rank has
// no values.
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

// Redistributes a tensor so that one mesh dimension shards it along its first
// dimension, and no other mesh dimension shards it.
LocalTensor rows_of(
    const KernelArgs& args,
    const at::Tensor& t,
    const char* argument,
    int64_t mesh_dim) {
  auto placements = replicated_placements(spec_of(t)->mesh());
  placements[static_cast<size_t>(mesh_dim)] = Shard(0);
  return redistributed(args.base_name(), argument, t, placements);
}

void nonzero(KernelArgs& args) {
  const auto self = args.tensor("self");
  const auto mesh_dim = selecting_dim(self);
  if (!mesh_dim) {
    return call_on_replicated(args);
  }
  const auto [rows, layout] = rows_of(args, self, "self", *mesh_dim);
  const auto found = at::nonzero(rows).contiguous();
  auto& group = get_group(layout->mesh(), *mesh_dim);
  const auto held = rows_of_ranks(*layout, *mesh_dim);
  found.select(1, 0).add_(held[static_cast<size_t>(group.rank())].begin);
  auto has = ranges_of_ranks(group, found);
  auto spec = Spec::make(
      layout->mesh(),
      layout->placements(),
      Sizes{has.back().end, found.size(1)},
      at::kLong);
  auto local = even_shard(found, std::move(has), spec, *mesh_dim);
  args.returns(wrap(std::move(local), std::move(spec)));
}

// Returns `t` as a DTensor; a plain tensor is replicated.
at::Tensor to_dtensor(const at::Tensor& t, const Spec& like) {
  return is_dtensor(t) ? t : replicated_on_mesh(like, t);
}

// Kernel of masked_select, which is x[mask] of the broadcast operands.
void masked_select(KernelArgs& args) {
  const auto spec = common_spec(args);
  const auto mask = args.tensor("mask");
  if (mask.scalar_type() != at::kBool) {
    return call_on_replicated(args); // throws
  }
  auto operands = at::broadcast_tensors(
      {to_dtensor(args.tensor("self"), *spec), to_dtensor(mask, *spec)});
  if (operands[0].dim() == 0) {
    operands = {operands[0].unsqueeze(0), operands[1].unsqueeze(0)};
  }
  if (selects_on_shards(operands[0], operands[1])) {
    args.returns(select_on_shards(args, operands[0], operands[1], "mask"));
    return;
  }
  args.returns(at::index(operands[0], as_list({operands[1]})));
}

// Returns masked_scatter of replicated operands, in the layout of self.
at::Tensor scattered_replicated(const KernelArgs& args, const SpecPtr& self) {
  const auto result = at::masked_scatter(
      replicated_argument(args, args.tensor("self"), "self"),
      replicated_argument(args, args.tensor("mask"), "mask"),
      replicated_argument(args, args.tensor("source"), "source"));
  const auto from = replicated_spec(*self, result);
  const bool same_shape = self->sizes() == SizesRef(result.sizes());
  const auto to = same_shape
      ? from->with_placements(without_partial(self->placements()))
      : from;
  return wrap(redistribute_local(result, from, to), to);
}

// Returns masked_scatter of the rows of each rank, in the layout of self. The
// source elements of a rank follow those of the ranks before it. Returns an
// undefined tensor if a rank needs the operands of other ranks, or if the
// source is too short (scattered_replicated() then throws on all ranks).
at::Tensor scattered_rows(const KernelArgs& args) {
  const auto self = args.tensor("self");
  const auto mask = args.tensor("mask");
  const auto mesh_dim = selecting_dim(self);
  if (!mesh_dim || !is_dtensor(mask) || mask.scalar_type() != at::kBool ||
      !at::is_expandable_to(mask.sizes(), self.sizes())) {
    return {};
  }
  const auto [where, layout] =
      rows_of(args, mask.expand(self.sizes()), "mask", *mesh_dim);
  auto& group = get_group(layout->mesh(), *mesh_dim);
  const auto taken = ranges_of_ranks(group, where.masked_select(where));
  const auto source = args.tensor("source");
  if (taken.back().end > source.numel()) {
    return {};
  }
  const auto& own = taken[static_cast<size_t>(group.rank())];
  const auto [rows, from] = rows_of(args, self, "self", *mesh_dim);
  const auto result = at::masked_scatter(
      rows,
      where,
      replicated_argument(args, source, "source")
          .reshape({-1})
          .narrow(0, own.begin, own.size()));
  const auto made = from->with_tensor(
      from->placements(),
      from->sizes(),
      dtensor::contiguous_strides(from->sizes()));
  const auto to =
      made->with_placements(without_partial(spec_of(self)->placements()));
  return wrap(redistribute_local(result, made, to), to);
}

void masked_scatter(KernelArgs& args) {
  auto self = args.tensor("self");
  const auto spec = common_spec(args);
  auto result = scattered_rows(args);
  if (!result.defined()) {
    result = scattered_replicated(args, spec);
  }
  if (args.base_name().back() == '_') {
    self.copy_(result);
    result = self;
  }
  args.returns(result);
}

// Kernel of the gradient of source: the elements of grad_output where the mask
// is true, and zeros for unneeded source elements. It consists of operators
// with derivatives, because LibTorch's derivative scatters into plain zeros.
void masked_scatter_backward(KernelArgs& args) {
  const auto spec = common_spec(args);
  const auto taken = to_dtensor(args.tensor("grad_output"), *spec)
                         .masked_select(to_dtensor(args.tensor("mask"), *spec));
  const auto to = fully_replicated_spec(*spec_of(taken));
  before_redistributing(
      args.base_name(), "grad_output", spec_of(taken), to->placements());
  const auto sizes = args.at("sizes").toIntVector();
  args.returns(at::constant_pad_nd(
                   redistribute_autograd(taken, to),
                   {0, c10::multiply_integers(sizes) - taken.numel()})
                   .view(sizes));
}

// Returns the number of bins that the elements of all ranks need; 0 for
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

// Kernel of bincount: every rank counts its elements into all bins.
void bincount(KernelArgs& args) {
  const auto given = args.tensor("self");
  const auto weights = args.optional_tensor("weights");
  const bool shard = is_dtensor(given) && given.dim() == 1 &&
      (!weights || (is_dtensor(*weights) && weights->sizes() == given.sizes()));
  DTENSOR_CHECK_VALUE(
      shard,
      "[{}] needs a 1-d DTensor and weights of its shape. Reshape them, or "
      "distribute the plain one.",
      args.name());
  const auto minlength = args.integer("minlength");
  DTENSOR_CHECK_VALUE(
      minlength >= 0,
      "[{}] minlength must be at least 0, got {}. Pass 0 for no minimum.",
      args.name(),
      minlength);
  if (weights) {
    check_same_mesh(args.name(), *spec_of(given), *spec_of(*weights));
  }
  const auto layout = without_partial(DTensor(given).placements());
  const DTensor self(DTensor(given).redistribute(layout));
  const auto bins = std::max(bins_for(args.name(), self), minlength);
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
      DTensor::from_local(counts, self.device_mesh(), sums_of_shards(layout)));
}

} // namespace

DTENSOR_RULES(data_sized) {
  rules.kernel("repeat_interleave.Tensor", with_args(call_on_replicated));
  rules.kernel("bincount", with_args(bincount));
  rules.kernel("nonzero", with_args(nonzero));
  rules.kernel("masked_select", with_args(masked_select)).as_region();
  rules.kernel("masked_scatter", with_args(masked_scatter));
  rules.kernel("masked_scatter_backward", with_args(masked_scatter_backward))
      .as_region();
}

} // namespace dtensor
