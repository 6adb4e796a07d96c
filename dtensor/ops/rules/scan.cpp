// SPDX-License-Identifier: BSD-3-Clause
// Operators along one dimension that keep its size or pick from it: cumulative
// sums, sorting, top k. Cumulative operators, topk and sort may be sharded
// along that dimension; for the others it is unsharded.
#include <dtensor/layout/shard_math.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/reduction_impl.h>
#include <dtensor/ops/rules/shapes_impl.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

namespace dtensor {
namespace {

using namespace detail;

std::vector<OutputMeta> scanned_and_indices(const OpCall& call) {
  const auto& self = *call.inputs[0].spec;
  return {dense(self.sizes(), self.dtype()), dense(self.sizes(), at::kLong)};
}

std::vector<OutputMeta> like_second(const OpCall& call) {
  const auto& self = *call.inputs[1].spec;
  return {dense(self.sizes(), self.dtype())};
}

// Returns the strategies of renorm, which scales each slice along `dim` by its
// own norm.
Strategies renorm_rule(const OpCall& call, int64_t) {
  const auto dim = call.dim_arg("dim", call.inputs[0].dim());
  return {{{Shard(dim)}, {Shard(dim)}}};
}

// Returns this mesh dimension's largest shard of dimension `dim`; 0 if the mesh
// dimension does not shard it.
int64_t largest_shard_of(const OpInput& input, int64_t mesh_dim, int64_t dim) {
  if (!input.placement(mesh_dim).is_sharded(dim)) {
    return 0;
  }
  const auto& mesh = input.spec->mesh();
  int64_t parts = 1;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    parts *= input.placement(m).is_sharded(dim) ? mesh.size(m) : 1;
  }
  return (input.sizes()[static_cast<size_t>(dim)] + parts - 1) / parts;
}

bool has_order(at::ScalarType dtype) {
  return dtype != at::kBool && !at::isComplexType(dtype);
}

// Returns the strategies of topk. Ranks exchange candidates if that moves fewer
// bytes than the elements of the shards. A candidate has an index of 8 bytes at
// most.
Strategies topk_rule(const OpCall& call, int64_t mesh_dim) {
  auto strategies = along_dim_rule()(call, mesh_dim);
  const auto& input = call.inputs[0];
  const auto dtype = input.spec->dtype();
  if (input.dim() == 0 || input.spec->numel() == 0 || !has_order(dtype)) {
    return strategies;
  }
  const auto dim = call.dim_arg("dim", input.dim());
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  const auto k = call.int_arg("k");
  if (k > 0 &&
      k * (element + 8) <= largest_shard_of(input, mesh_dim, dim) * element) {
    strategies.push_back({{Replicate(), Replicate()}, {Shard(dim)}});
  }
  return strategies;
}

// Returns true for the dtypes of which the kernel of sort knows the order.
bool has_sort_keys(at::ScalarType dtype) {
  const bool is_wide_unsigned =
      dtype == at::kUInt16 || dtype == at::kUInt32 || dtype == at::kUInt64;
  return dtype == at::kDouble || dtype == at::kFloat || dtype == at::kHalf ||
      dtype == at::kBFloat16 ||
      (at::isIntegralType(dtype, /*includeBool=*/true) && !is_wide_unsigned);
}

// Returns true if the shards of `dim` may be sorted where they are: chunks of
// this mesh dimension alone. If another dimension can be sharded, moving the
// shards there and back costs less.
bool sorts_shards(const OpInput& input, int64_t mesh_dim, int64_t dim) {
  const auto& mesh = input.spec->mesh();
  bool fits = input.spec->numel() > 0 && mesh.size(mesh_dim) > 1 &&
      input.placement(mesh_dim).is_chunk() &&
      input.placement(mesh_dim).is_sharded(dim);
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    fits &= m == mesh_dim || !input.placement(m).is_sharded(dim);
  }
  for (int64_t d = 0; d < input.dim(); ++d) {
    fits &=
        d == dim || input.sizes()[static_cast<size_t>(d)] < mesh.size(mesh_dim);
  }
  return fits && has_sort_keys(input.spec->dtype());
}

// Returns true if sorting shards moves fewer bytes than gathering them. Ranks
// exchange each element and its index (2, 4 or 8 bytes) once, and about
// sqrt(shard * ranks) samples and as many elements near them, of 16 bytes.
bool is_worth_sorting(const OpInput& input, int64_t mesh_dim, int64_t dim) {
  const auto ranks = static_cast<double>(input.spec->mesh().size(mesh_dim));
  const auto shard =
      static_cast<double>(largest_shard_of(input, mesh_dim, dim));
  const auto element =
      static_cast<double>(c10::elementSize(input.spec->dtype()));
  const double index = shard < 32768 ? 2 : shard < 2147483648.0 ? 4 : 8;
  const auto samples = 48 * ranks * std::sqrt(shard * ranks);
  return samples + shard * (element + index) * (ranks - 1) / ranks <
      shard * element * (ranks - 1);
}

// Returns the strategies of sort. Shards are sorted where they are if that
// pays.
Strategies sort_rule(const OpCall& call, int64_t mesh_dim) {
  auto strategies = along_dim_rule()(call, mesh_dim);
  const auto& input = call.inputs[0];
  if (input.dim() > 0) {
    const auto dim = call.dim_arg("dim", input.dim());
    if (sorts_shards(input, mesh_dim, dim) &&
        is_worth_sorting(input, mesh_dim, dim)) {
      strategies.push_back({{Shard(dim), Shard(dim)}, {Shard(dim)}});
    }
  }
  return strategies;
}

// Marks calls that the operator itself can run: those along a dimension that is
// not sharded. Others have the layout of the operand in their decision.
void note_sharded_dim(const OpCall& call, Decision& decision) {
  const auto spec =
      decision.inputs[0] == nullptr ? call.inputs[0].spec : decision.inputs[0];
  decision.is_plain_call =
      spec->dim() == 0 || !spec->is_sharded(call.dim_arg("dim", spec->dim()));
  if (!decision.is_plain_call) {
    decision.inputs[0] = spec;
  }
}

// Returns the rule of a cumulative operator. The local kernel combines the
// shards of the scanned dimension, which must be in rank order: shards of a
// StridedShard are not.
DimRule scan_rule(std::vector<size_t> linear = {}) {
  return [others = along_dim_rule(std::move(linear))](
             const OpCall& call, int64_t mesh_dim) {
    auto strategies = others(call, mesh_dim);
    const auto& self = call.inputs[0];
    if (self.dim() == 0) {
      return strategies;
    }
    const auto dim = call.dim_arg("dim", self.dim());
    const auto& now = self.spec->placements();
    if (std::none_of(now.begin(), now.end(), [&](const Placement& p) {
          return p.is_strided_shard() && p.dim() == dim;
        })) {
      Strategy along{{}, {Shard(dim)}};
      along.outputs.resize(call.outputs.size(), Shard(dim));
      strategies.push_back(std::move(along));
    }
    return strategies;
  };
}

// Returns the rule of logcumsumexp. A sum of complex numbers has several
// logarithms, and the plain operator's choice depends on the order of its
// terms.
DimRule logcumsumexp_rule() {
  return [real = scan_rule(), complex = along_dim_rule()](
             const OpCall& call, int64_t mesh_dim) {
    const bool is_complex = c10::isComplexType(call.inputs[0].spec->dtype());
    return (is_complex ? complex : real)(call, mesh_dim);
  };
}

bool scans_shards(const OpCall& call, const Spec& self) {
  return self.dim() > 0 && self.is_sharded(call.dim_arg("dim", self.dim()));
}

// Marks calls that the operator itself can run.
void note_plain_scan(const OpCall& call, Decision& decision) {
  decision.is_plain_call = !scans_shards(call, decision.layout_of(call, 0));
}

// Marks calls that the operator itself can run: those with elements, whose
// gradient depends on the same tensors as on other ranks.
void note_plain_scan_of_some(const OpCall& call, Decision& decision) {
  const auto& self = decision.layout_of(call, 0);
  decision.is_plain_call =
      !scans_shards(call, self) && numel(self.local_sizes()) > 0;
}

// Softmax and similar operators: the softmax dimension is unsharded, and all
// others may be sharded. The backward operators are linear in the gradient.

std::vector<OutputMeta> like_self(const OpCall& call) {
  const auto& self = *call.inputs[0].spec;
  const auto& dtype = call.arg("dtype");
  return {detail::dense(
      self.sizes(), dtype.isNone() ? self.dtype() : dtype.toScalarType())};
}

} // namespace

DTENSOR_RULES(scan) {
  // Gradients are scans in the other direction, of totals of other ranks.
  rules.dim_rule("cumsum", scan_rule({0}))
      .with_localize(note_plain_scan)
      .with_local_kernel(cumsum_local)
      .as_region();
  rules.dim_rule("cumprod", scan_rule())
      .with_localize(note_plain_scan_of_some)
      .with_local_kernel(cumprod_local)
      .as_region();
  for (const auto* name : {"cummax", "cummin"}) {
    rules.dim_rule(name, scan_rule())
        .with_meta(scanned_and_indices)
        .with_localize(note_plain_scan_of_some)
        .with_local_kernel(running_extreme_local)
        .as_region();
  }
  rules.dim_rule("logcumsumexp", logcumsumexp_rule())
      .with_meta(dense_like_first)
      .with_localize(note_plain_scan)
      .with_local_kernel(logcumsumexp_local)
      .as_region();
  rules.dim_rule("_logcumsumexp", logcumsumexp_rule())
      .with_meta(dense_like_first)
      .with_localize(note_plain_scan)
      .with_local_kernel(logcumsumexp_local);
  const auto unsharded_dim_rule = along_dim_rule();
  rules.dim_rule("renorm", renorm_rule);
  rules.dim_rule("glu", unsharded_dim_rule);
  rules.dim_rule("glu_backward", along_dim_rule({0})).with_meta(like_second);
  // Operators that pick elements scatter into plain zeros in the backward pass,
  // so they run with the autograd of the local operator.
  for (const auto* name : {"sort", "sort.stable"}) {
    rules.dim_rule(name, sort_rule)
        .with_localize(note_sharded_dim)
        .with_local_kernel(sort_local)
        .as_region();
  }
  rules.dim_rule("topk", topk_rule)
      .with_localize(note_sharded_dim)
      .with_local_kernel(topk_local)
      .as_region();
  for (const auto* name : {"_softmax", "_log_softmax"}) {
    rules.dim_rule(name, detail::along_dim_rule());
  }
  rules.dim_rule("_safe_softmax", detail::along_dim_rule())
      .with_meta(like_self);
  for (const auto* name :
       {"_softmax_backward_data", "_log_softmax_backward_data"}) {
    rules.dim_rule(name, detail::along_dim_rule({0}));
  }
}

} // namespace dtensor
