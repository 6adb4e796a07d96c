// SPDX-License-Identifier: BSD-3-Clause
// Scans along a sharded dimension. Each rank scans its shard, and gathers the
// totals of all shards: their last scanned slices. The totals of the preceding
// shards are combined with each local element. (logcumsumexp instead prepends
// the total of the preceding shards, and scans once.) All ranks record the same
// autograd graph beyond their local scans, so that gradients communicate alike.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/layout/shard_math.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/kernels/linear_map_impl.h>
#include <dtensor/ops/kernels/over_shards_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cummax.h>
#include <ATen/ops/cummin.h>
#include <ATen/ops/cumprod.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logcumsumexp.h>
#include <ATen/ops/where.h>

#include <limits>
#include <utility>

namespace dtensor::detail {
namespace {

// The dimension of a scan, and the gathering of a row of each of its shards.
struct ScanLayout : LinearMap {
  ScanLayout(SpecPtr s, int64_t d) : spec(std::move(s)), dim(d) {}

  /// Returns the tensors (1, ...) of all shards, in their order: (shards, ...).
  at::Tensor apply(const at::Tensor& row) const override {
    auto rows = row.contiguous();
    for (int64_t m = spec->mesh().ndim() - 1; m >= 0; --m) {
      if (shards_on(m)) {
        rows = get_group(spec->mesh(), m).all_gather(rows, 0);
      }
    }
    return rows;
  }
  /// Returns the sum over ranks of the row of this rank's shard.
  at::Tensor apply_adjoint(const at::Tensor& rows) const override {
    auto row = rows.contiguous();
    for (int64_t m = 0; m < spec->mesh().ndim(); ++m) {
      if (shards_on(m)) {
        row = get_group(spec->mesh(), m).reduce_scatter(row, 0, ReduceOp::kSum);
      }
    }
    return row;
  }

  bool shards_on(int64_t mesh_dim) const {
    return spec->placements()[static_cast<size_t>(mesh_dim)].is_sharded(dim);
  }
  /// Returns the position of the local shard along the dimension.
  int64_t position() const {
    int64_t position = 0;
    for (int64_t m = 0; m < spec->mesh().ndim(); ++m) {
      if (shards_on(m)) {
        position =
            position * spec->mesh().size(m) + spec->mesh().get_local_rank(m);
      }
    }
    return position;
  }

  SpecPtr spec;
  int64_t dim;
};
using ScanLayoutPtr = c10::intrusive_ptr<ScanLayout>;

// Returns the last slice of a scanned shard, (1, ...); for an empty shard
// `identity`, in the same autograd graph.
at::Tensor
total_of(const at::Tensor& scanned, int64_t dim, const at::Scalar& identity) {
  const auto size = scanned.size(dim);
  const auto total = size > 0
      ? scanned.narrow(dim, size - 1, 1)
      : scanned.sum(dim, /*keepdim=*/true, scanned.scalar_type()) + identity;
  return total.to(scanned.scalar_type()).unsqueeze(0);
}

// Returns a mask (shards, 1, ...) of the shards before the local one.
at::Tensor preceding(const at::Tensor& rows, const ScanLayout& layout) {
  const auto shards = at::arange(rows.size(0), rows.options().dtype(at::kLong));
  return along_dim(shards.lt(layout.position()), 0, rows.dim());
}

at::Tensor filled(const at::Scalar& value, const at::Tensor& like) {
  return at::full({}, value, like.options());
}

// Gathers the total of each shard, (1, ...). Returns the totals of the
// preceding shards, (shards, ...); the others are `identity`.
at::Tensor totals_before(
    const at::Tensor& total,
    const ScanLayoutPtr& layout,
    const at::Scalar& identity) {
  const auto rows = apply_linear(total, layout);
  return at::where(preceding(rows, *layout), rows, filled(identity, rows));
}

// --- scans by sums and products ----------------------------------------------

// Saves no tensors for the backward pass, like the plain operator, so that
// backward may run twice.
at::Tensor scan_sum(const at::Tensor& self, const ScanLayoutPtr& layout) {
  const auto scanned = at::cumsum(self, layout->dim, self.scalar_type());
  const auto rows = apply_linear(total_of(scanned, layout->dim, 0), layout);
  return scanned +
      rows.narrow(0, 0, layout->position())
          .sum(0, /*keepdim=*/false, self.scalar_type());
}

at::Tensor scan_product(const at::Tensor& self, const ScanLayoutPtr& layout) {
  // For an empty shard, LibTorch's formula would not depend on `self`.
  const auto scanned = self.numel() > 0
      ? at::cumprod(self, layout->dim, self.scalar_type())
      : self * self;
  return scanned *
      totals_before(total_of(scanned, layout->dim, 1), layout, 1)
          .prod(0, /*keepdim=*/false, self.scalar_type());
}

// Returns logsumexp along `dim`, which is kept. The gradient where all elements
// are -inf, or where there are none, is 0 and not NaN.
at::Tensor log_sum(const at::Tensor& self, int64_t dim) {
  const double none = -std::numeric_limits<double>::infinity();
  const auto is_none = self.eq(none).all(dim, /*keepdim=*/true);
  const auto sum = at::where(is_none, filled(0, self), self)
                       .logsumexp(at::IntArrayRef{dim}, /*keepdim=*/true);
  return at::where(is_none, filled(none, self), sum);
}

// Scans the shard behind the total of the preceding shards, so that all
// derivatives are those of the plain operator.
at::Tensor scan_log_sum(const at::Tensor& self, const ScanLayoutPtr& layout) {
  const double none = -std::numeric_limits<double>::infinity();
  const auto dim = layout->dim;
  const auto totals =
      totals_before(log_sum(self, dim).unsqueeze(0), layout, none);
  const auto before = log_sum(totals, 0).squeeze(0);
  return at::logcumsumexp(at::cat({before, self}, dim), dim)
      .narrow(dim, 1, self.size(dim));
}

using Scan = at::Tensor (*)(const at::Tensor&, const ScanLayoutPtr&);

ScanLayoutPtr layout_of(const KernelArgs& args, const Decision& decision) {
  const auto& spec = decision.outputs[0];
  return c10::make_intrusive<ScanLayout>(
      spec, c10::maybe_wrap_dim(args.integer("dim"), spec->dim()));
}

// Runs `scan`, or the operator itself if there are no data.
void run_scan(KernelArgs& args, const Decision& decision, Scan scan) {
  const auto self = args.tensor("self");
  if (self.is_meta()) {
    return args.run_operator();
  }
  const auto dtype = decision.outputs[0]->dtype();
  auto result = scan(
                    self.to(dtype).to(accumulation_dtype(dtype)),
                    layout_of(args, decision))
                    .to(dtype);
  const auto* alias = args.op().schema().arguments()[0].alias_info();
  if (alias != nullptr && alias->isWrite()) {
    self.copy_(result);
    result = self;
  }
  args.returns(std::move(result));
}

// --- running extremes --------------------------------------------------------

// Values and their global indices; an index of -1 stands for no element.
struct Extremes {
  at::Tensor values;
  at::Tensor places;
};

// Returns a mask of the elements where `later` replaces `earlier`, by the rules
// of the plain operator: the last of equal elements wins, and NaN always wins.
at::Tensor
replaces(const Extremes& later, const Extremes& earlier, bool greatest) {
  const auto& a = later.values;
  const auto& b = earlier.values;
  const auto reaches = greatest ? a.ge(b) : a.le(b);
  return later.places.ge(0).logical_and(
      earlier.places.lt(0).logical_or(a.isnan()).logical_or(
          b.isnan().logical_not().logical_and(reaches)));
}

Extremes
later_of(const Extremes& later, const Extremes& earlier, bool greatest) {
  const auto mask = replaces(later, earlier, greatest);
  return {
      at::where(mask, later.values, earlier.values),
      at::where(mask, later.places, earlier.places)};
}

// Scans the shard. For an empty shard, LibTorch's formula would not depend on
// the incoming gradient.
Extremes
scan_shard(const at::Tensor& self, const ScanLayout& l, bool greatest) {
  if (self.numel() == 0) {
    return {self.clone(), at::empty_like(self, at::kLong)};
  }
  auto [values, places] =
      greatest ? at::cummax(self, l.dim) : at::cummin(self, l.dim);
  return {values, places + local_intervals(*l.spec, l.dim)[0].begin};
}

Extremes scan_extremes(
    const at::Tensor& self,
    const ScanLayoutPtr& layout,
    bool greatest) {
  const auto scanned = scan_shard(self, *layout, greatest);
  const auto values =
      apply_linear(total_of(scanned.values, layout->dim, 0), layout);
  auto places = layout->apply(total_of(scanned.places, layout->dim, -1));
  places = at::where(preceding(places, *layout), places, filled(-1, places));
  Extremes before{values[0], places[0]};
  for (int64_t row = 1; row < values.size(0); ++row) {
    before = later_of({values[row], places[row]}, before, greatest);
  }
  return later_of(scanned, before, greatest);
}

} // namespace

void cumsum_local(KernelArgs& args, const Decision& decision) {
  run_scan(args, decision, scan_sum);
}

void cumprod_local(KernelArgs& args, const Decision& decision) {
  run_scan(args, decision, scan_product);
}

void logcumsumexp_local(KernelArgs& args, const Decision& decision) {
  run_scan(args, decision, scan_log_sum);
}

void running_extreme_local(KernelArgs& args, const Decision& decision) {
  const auto self = args.tensor("self");
  if (self.is_meta()) {
    return args.run_operator();
  }
  const auto layout = layout_of(args, decision);
  if (self.numel() == 0 && !layout->spec->is_sharded(layout->dim)) {
    args.returns(self.clone(), at::empty_like(self, at::kLong));
    return;
  }
  const bool greatest = args.name() == "aten::cummax";
  auto result = scan_extremes(self, layout, greatest);
  args.returns(result.values, result.places);
}

} // namespace dtensor::detail
