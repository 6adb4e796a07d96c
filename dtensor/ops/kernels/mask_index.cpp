// SPDX-License-Identifier: BSD-3-Clause
// x[mask] and x[:, mask], where the mask covers some dimensions of x. Each rank
// selects from its shard of these dimensions, and the ranks exchange the
// selected elements, so that each has an even shard. Shards of the other
// dimensions stay where they are. A mask beside another index is replaced by
// the positions of its elements.
#include <dtensor/ops/kernels/index_kernels_impl.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/index.h>
#include <ATen/ops/nonzero.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/error.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/kernels/row_exchange_impl.h>
#include <dtensor/ops/propagate_impl.h>
#include <dtensor/ops/scopes/explicit_redistribution_impl.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/memory_order_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/wrap_impl.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace dtensor::detail {
namespace {

// A mask, and the first of the dimensions of x that it covers.
struct Mask {
  at::Tensor mask;
  int64_t begin = 0;

  bool covers(const Placement& p) const {
    return p.is_sharded() && p.dim() >= begin && p.dim() < begin + mask.dim();
  }
};

// Returns the only index if it is a mask; an undefined mask otherwise.
Mask only_mask(const c10::IValue& indices) {
  Mask found;
  for (const c10::IValue& item : indices.toListRef()) {
    const bool is_given = item.isTensor() && item.toTensor().defined();
    if (is_given && found.mask.defined()) {
      return {};
    }
    if (is_given) {
      found.mask = item.toTensor();
    } else if (!found.mask.defined()) {
      ++found.begin;
    }
  }
  return found.mask.defined() && is_mask(found.mask) ? found : Mask{};
}

// The layouts of x, the mask and the result.
struct MaskedLayout {
  Placements self;
  Placements mask;
  Placements result;
  /// The mesh dimension whose ranks select from their own shard, if any.
  std::optional<int64_t> selecting;
};

// Returns the mesh dimension that shards the first dimension that the mask
// covers; if there is none, the first mesh dimension that shards another
// covered dimension, or only the mask.
std::optional<int64_t> selecting_mesh_dim(const Spec& self, const Mask& by) {
  const auto of_mask = spec_of(by.mask)->placements();
  std::optional<int64_t> found;
  for (size_t m = self.placements().size(); m-- > 0;) {
    const auto& p = self.placements()[m];
    const bool fits = p.is_sharded() ? by.covers(p) : of_mask[m].is_sharded();
    const bool is_better = p.is_shard(by.begin) || !found ||
        !self.placements()[static_cast<size_t>(*found)].is_shard(by.begin);
    if (fits && is_better) {
      found = static_cast<int64_t>(m);
    }
  }
  return found;
}

MaskedLayout masked_layout(const Spec& self, const Mask& by) {
  const auto none = replicated_placements(self.mesh());
  MaskedLayout layout{none, none, none, selecting_mesh_dim(self, by)};
  for (size_t m = 0; m < none.size(); ++m) {
    const auto& p = self.placements()[m];
    if (layout.selecting == static_cast<int64_t>(m)) {
      layout.self[m] = p.is_shard(by.begin) ? p : Shard(by.begin);
      layout.mask[m] = layout.self[m].with_dim(0);
      layout.result[m] = Shard(by.begin);
    } else if (p.is_sharded() && !by.covers(p)) {
      const auto removed = p.dim() < by.begin ? 0 : by.mask.dim() - 1;
      layout.self[m] = p;
      layout.result[m] = p.with_dim(p.dim() - removed);
    } else if (p.is_partial()) {
      // Selection commutes with the reduction.
      layout.self[m] = layout.result[m] = p;
    }
  }
  return layout;
}

// Returns the indices of x[:, ..., index, ..., index], with `count` equal
// indices from dimension `begin` on.
IndexList indices_from(int64_t begin, int64_t count, const at::Tensor& index) {
  std::vector<at::Tensor> indices(static_cast<size_t>(begin));
  indices.insert(indices.end(), static_cast<size_t>(count), index);
  return as_list(indices);
}

at::Tensor masked_operand(
    const KernelArgs& args,
    const at::Tensor& t,
    const char* argument,
    PlacementsRef to) {
  const auto from = spec_of(t);
  const auto target = from->with_placements(to);
  if (target != from) {
    before_redistributing(args.base_name(), argument, from, to);
  }
  return to_local_autograd(redistribute_autograd(t, target));
}

// Returns the layout of a result of `count` selected elements. Its strides are
// those of the plain result.
SpecPtr result_spec(
    const Spec& self,
    const Mask& by,
    int64_t count,
    PlacementsRef placements) {
  const WithoutModes without_modes;
  const auto options = at::TensorOptions().device(at::kMeta);
  const auto result = at::index(
      at::empty_strided(
          self.sizes(), self.strides(), options.dtype(self.dtype())),
      indices_from(
          by.begin,
          by.mask.dim(),
          at::empty({count}, options.dtype(at::kLong))));
  return Spec::make(
      self.mesh(),
      placements,
      result.sizes(),
      result.strides(),
      result.scalar_type());
}

} // namespace

bool selects_on_shards(
    const at::Tensor& self,
    const at::Tensor& mask,
    int64_t begin) {
  if (!is_dtensor(self) || !is_dtensor(mask)) {
    return false;
  }
  const auto& of_self = *spec_of(self);
  const auto& of_mask = *spec_of(mask);
  return mask.dim() > 0 && begin + mask.dim() <= self.dim() &&
      self.sizes().slice(static_cast<size_t>(begin), mask.sizes().size()) ==
      mask.sizes() &&
      of_self.mesh() == of_mask.mesh() && of_self.mesh().contains_this_rank() &&
      !(of_self.is_replicated() && of_mask.is_replicated());
}

at::Tensor select_on_shards(
    const KernelArgs& args,
    const at::Tensor& self,
    const at::Tensor& mask,
    const char* mask_name,
    int64_t begin) {
  const Mask by{mask, begin};
  const auto self_spec = spec_of(self);
  const auto layout = masked_layout(*self_spec, by);
  const auto local_self = masked_operand(args, self, "self", layout.self);
  auto selected = at::index(
      local_self,
      indices_from(
          begin, 1, masked_operand(args, mask, mask_name, layout.mask)));
  std::vector<Interval> has{{0, selected.size(begin)}};
  if (const auto m = layout.selecting) {
    has = ranges_of_ranks(get_group(self_spec->mesh(), *m), selected, begin);
  }
  const auto spec = result_spec(*self_spec, by, has.back().end, layout.result);
  if (const auto m = layout.selecting) {
    selected = even_shard(selected, std::move(has), spec, *m);
  }
  return from_local_autograd(
      in_memory_order(std::move(selected), spec->strides()), spec);
}

bool is_mask(const at::Tensor& index) {
  return index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
}

namespace {

// Returns true if `index` is a DTensor on the mesh of x. A mask must also have
// as many elements as x has in the dimensions from `begin` on.
bool fits(const at::Tensor& index, const at::Tensor& x, size_t begin) {
  if (!is_dtensor(index) || spec_of(index)->mesh() != spec_of(x)->mesh()) {
    return false;
  }
  const auto sizes = x.sizes().slice(std::min(begin, x.sizes().size()));
  return is_mask(index)
      ? index.dim() > 0 && sizes.size() >= index.sizes().size() &&
          sizes.slice(0, index.sizes().size()) == index.sizes()
      : !sizes.empty();
}

// Returns true if a mask is beside another index, and any of the operands is
// not replicated.
bool has_mask_beside_index(const at::Tensor& x, const c10::IValue& indices) {
  if (!is_dtensor(x) || x.is_meta() ||
      !spec_of(x)->mesh().contains_this_rank()) {
    return false;
  }
  size_t dim = 0;
  int given = 0;
  bool has_mask = false;
  bool is_replicated = spec_of(x)->is_replicated();
  for (const c10::IValue& item : indices.toListRef()) {
    if (item.isNone() || !item.toTensor().defined()) {
      ++dim;
      continue;
    }
    const auto& index = item.toTensor();
    if (!fits(index, x, dim)) {
      return false;
    }
    dim += is_mask(index) ? index.sizes().size() : 1;
    has_mask |= is_mask(index);
    is_replicated &= spec_of(index)->is_replicated();
    ++given;
  }
  return has_mask && given > 1 && !is_replicated;
}

// Returns true for an index of integers and for a mask of booleans.
bool is_integer_or_boolean(const at::Tensor& index) {
  const auto dtype = index.scalar_type();
  return dtype == at::kLong || dtype == at::kInt || dtype == at::kBool;
}

// Returns true if an index has another dtype. The inference of shapes in
// PyTorch's Python refuses masks of bytes.
bool has_other_dtype(const c10::IValue& indices) {
  return std::ranges::any_of(indices.toListRef(), [](const c10::IValue& item) {
    return !item.isNone() && item.toTensor().defined() &&
        !is_integer_or_boolean(item.toTensor());
  });
}

// Returns the indices with masks of bytes as masks of booleans.
IndexList with_boolean_masks(
    const KernelArgs& args,
    const c10::IValue& indices) {
  std::vector<at::Tensor> all;
  for (const c10::IValue& item : indices.toListRef()) {
    auto index = item.isNone() ? at::Tensor() : item.toTensor();
    if (index.defined() && !is_integer_or_boolean(index)) {
      DTENSOR_CHECK_INDEX(
          is_mask(index),
          "[{}] {} cannot be an index. Pass integers (int32 or int64) or a "
          "boolean mask.",
          args.base_name(),
          shape_text(index.scalar_type(), index.sizes()));
      index = index.to(at::kBool);
    }
    all.push_back(std::move(index));
  }
  return as_list(all);
}

// Returns the indices with each mask replaced by the positions of its elements.
// The positions are replicated.
IndexList as_positions(const KernelArgs& args, const c10::IValue& indices) {
  return as_list(indices_by_dim(indices, [&](const at::Tensor& mask) {
    auto by_dim =
        at::nonzero(replicated_argument(args, mask, "indices")).unbind(1);
    for (auto& positions : by_dim) {
      positions = positions.contiguous();
      positions = wrap(positions, replicated_spec(*spec_of(mask), positions));
    }
    return by_dim;
  }));
}

} // namespace

bool indexes_shards_by_mask(c10::ArrayRef<c10::IValue> args) {
  if (has_other_dtype(args[1])) {
    return true;
  }
  const auto& self = args[0].toTensor();
  const auto by = only_mask(args[1]);
  return by.mask.defined() ? selects_on_shards(self, by.mask, by.begin)
                           : has_mask_beside_index(self, args[1]);
}

void index_shards_by_mask(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack) {
  KernelArgs args(op, *stack);
  const auto self = args.tensor("self");
  const auto& indices = args.at("indices");
  if (has_other_dtype(indices)) {
    args.returns(at::index(self, with_boolean_masks(args, indices)));
    return;
  }
  const auto by = only_mask(indices);
  args.returns(
      by.mask.defined()
          ? select_on_shards(args, self, by.mask, "indices", by.begin)
          : at::index(self, as_positions(args, indices)));
}

} // namespace dtensor::detail
