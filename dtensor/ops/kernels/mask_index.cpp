// SPDX-License-Identifier: BSD-3-Clause
// x[mask], where the mask covers the first dimensions of x. Each rank selects
// from its rows, and the ranks exchange selected rows, so that each has an even
// part. Shards of the other dimensions stay where they are.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/index.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/kernels/selected_rows_impl.h>
#include <dtensor/ops/scopes/explicit_redistribution_impl.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/memory_order_impl.h>
#include <dtensor/tensor/meta_impl.h>

#include <optional>
#include <utility>
#include <vector>

namespace dtensor {
namespace {

using namespace detail;

// Returns the only index if it is a mask of the first dimensions; undefined
// otherwise.
at::Tensor leading_mask(const c10::IValue& indices) {
  at::Tensor mask;
  for (const c10::IValue& item : indices.toListRef()) {
    const bool is_given = item.isTensor() && item.toTensor().defined();
    if (is_given == mask.defined()) {
      return {}; // nothing in front, or a further index
    }
    mask = is_given ? item.toTensor() : mask;
  }
  return mask.defined() &&
          (mask.scalar_type() == at::kBool || mask.scalar_type() == at::kByte)
      ? mask
      : at::Tensor();
}

// The layouts of x, the mask and the result.
struct MaskedLayout {
  Placements self;
  Placements mask;
  Placements result;
  /// The mesh dimension whose ranks select from their own rows, if any.
  std::optional<int64_t> selecting;
};

bool is_behind_mask(const Placement& p, const Spec& mask) {
  return p.is_sharded() && p.dim() >= mask.dim();
}

// Returns the first mesh dimension that shards the first dimension of x; or
// else the first that shards another dimension that the mask covers, or that
// shards only the mask.
std::optional<int64_t> selecting_mesh_dim(const Spec& self, const Spec& mask) {
  std::optional<int64_t> found;
  for (size_t m = self.placements().size(); m-- > 0;) {
    const auto& p = self.placements()[m];
    const bool fits = !is_behind_mask(p, mask) &&
        (p.is_sharded() || mask.placements()[m].is_sharded());
    const bool is_better = p.is_shard(0) || !found ||
        !self.placements()[static_cast<size_t>(*found)].is_shard(0);
    if (fits && is_better) {
      found = static_cast<int64_t>(m);
    }
  }
  return found;
}

MaskedLayout masked_layout(const Spec& self, const Spec& mask) {
  const auto none = replicated_placements(self.mesh());
  MaskedLayout layout{none, none, none, selecting_mesh_dim(self, mask)};
  for (size_t m = 0; m < none.size(); ++m) {
    const auto& p = self.placements()[m];
    if (layout.selecting == static_cast<int64_t>(m)) {
      layout.self[m] = layout.mask[m] = p.is_shard(0) ? p : Shard(0);
      layout.result[m] = Shard(0);
    } else if (is_behind_mask(p, mask)) {
      layout.self[m] = p;
      layout.result[m] = p.with_dim(p.dim() - mask.dim() + 1);
    } else if (p.is_partial()) {
      layout.self[m] = layout.result[m] = p; // terms are only picked
    }
  }
  return layout;
}

at::Tensor masked_operand(
    const c10::OperatorHandle& op,
    const at::Tensor& t,
    const char* argument,
    PlacementsRef to) {
  const auto from = spec_of(t);
  const auto target = from->with_placements(to);
  if (target != from) {
    before_redistributing(op.schema().name(), argument, from, to);
  }
  return to_local_autograd(redistribute_autograd(t, target));
}

// Returns the layout of a result of `count` rows. Its strides are those of the
// plain result.
SpecPtr result_spec(
    const Spec& self,
    int64_t mask_dims,
    int64_t count,
    PlacementsRef placements) {
  const auto options = at::TensorOptions().device(at::kMeta);
  c10::List<std::optional<at::Tensor>> places;
  for (int64_t d = 0; d < mask_dims; ++d) {
    places.push_back(at::empty({count}, options.dtype(at::kLong)));
  }
  const auto result = at::index(
      at::empty_strided(
          self.sizes(), self.strides(), options.dtype(self.dtype())),
      places);
  return Spec::make(
      self.mesh(),
      placements,
      result.sizes(),
      result.strides(),
      result.scalar_type());
}

} // namespace

bool detail::selects_on_shards(const at::Tensor& self, const at::Tensor& mask) {
  if (!is_dtensor(self) || !is_dtensor(mask)) {
    return false;
  }
  const auto& of_self = *spec_of(self);
  const auto& of_mask = *spec_of(mask);
  return mask.dim() > 0 && mask.dim() <= self.dim() &&
      self.sizes().slice(0, mask.sizes().size()) == mask.sizes() &&
      of_self.mesh() == of_mask.mesh() && of_self.mesh().contains_this_rank() &&
      !(of_self.is_replicated() && of_mask.is_replicated());
}

at::Tensor detail::select_on_shards(
    const c10::OperatorHandle& op,
    const at::Tensor& self,
    const at::Tensor& mask,
    const char* mask_name) {
  const auto whole = spec_of(self);
  const auto layout = masked_layout(*whole, *spec_of(mask));
  const auto part = masked_operand(op, self, "self", layout.self);
  c10::List<std::optional<at::Tensor>> indices;
  indices.push_back(masked_operand(op, mask, mask_name, layout.mask));
  auto rows = at::index(part, indices);
  std::vector<Interval> has{{0, rows.size(0)}};
  if (const auto m = layout.selecting) {
    has = ranges_of_ranks(get_group(whole->mesh(), *m), rows);
  }
  const auto spec =
      result_spec(*whole, mask.dim(), has.back().end, layout.result);
  if (const auto m = layout.selecting) {
    rows = even_shard(rows, std::move(has), spec, *m);
  }
  return from_local_autograd(
      in_memory_order(std::move(rows), spec->strides()), spec);
}

bool detail::indexes_shards_by_mask(c10::ArrayRef<c10::IValue> args) {
  return selects_on_shards(args[0].toTensor(), leading_mask(args[1]));
}

void detail::index_shards_by_mask(
    const c10::OperatorHandle& op,
    torch::jit::Stack* stack) {
  KernelArgs args(op, *stack);
  args.returns(select_on_shards(
      op, args.tensor("self"), leading_mask(args.at("indices")), "indices"));
}

} // namespace dtensor
