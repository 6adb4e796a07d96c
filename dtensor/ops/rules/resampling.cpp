// SPDX-License-Identifier: BSD-3-Clause
// Upsampling, and padding by reflection or replication, of (samples...,
// channels, space...). Sharded spatial dimensions may stay sharded: ranks
// exchange the rows from which their rows of the result are computed.
#include <dtensor/error.h>
#include <dtensor/layout/kernel_window_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/shapes_impl.h>
#include <dtensor/ops/rules/spatial_impl.h>

#include <string>

namespace dtensor {
namespace {

using namespace detail;

// --- upsampling -------------------------------------------------------------

// Returns the whole number by which `dim` grows; 0 if it does not grow by a
// whole number, or if the positions of its rows depend on the size.
int64_t factor_of(const OpCall& call, int64_t space, int64_t dim) {
  const auto d = static_cast<size_t>(dim);
  const auto size = call.inputs[0].sizes()[d];
  const auto result = call.outputs[0].sizes[d];
  if (size == 0 || result % size != 0 ||
      (call.has_arg("align_corners") && call.bool_arg("align_corners"))) {
    return 0;
  }
  // The factors, one for each spatial dimension, are the last arguments.
  const auto from_end = static_cast<size_t>(call.inputs[0].dim() - dim);
  const auto& given = call.args[call.args.size() - from_end];
  const int64_t factor = result / size;
  const bool fits =
      given.isNone() || given.toDouble() == static_cast<double>(factor);
  TORCH_INTERNAL_ASSERT(from_end <= static_cast<size_t>(space));
  return fits ? factor : 0;
}

// Returns the rule of upsampling. A row of the result needs `halo` rows on
// either side. Shards of the result lie at multiples of the factor.
DimRule upsample(int64_t space, int64_t halo) {
  return [space, halo, others = before_space(space, Linear::kInFirst)](
             const OpCall& call, int64_t mesh_dim) {
    auto all = others(call, mesh_dim);
    const auto& self = call.inputs[0];
    const auto dim = sharded_space(call, self, mesh_dim, self.dim() - space);
    const auto factor = dim == 0 ? 0 : factor_of(call, space, dim);
    if (factor == 0 || !self.placement(mesh_dim).is_chunk()) {
      return all;
    }
    const auto needed = [&](Interval rows) {
      return Interval{
          rows.begin / factor - halo, (rows.end - 1) / factor + 1 + halo};
    };
    const auto result = call.outputs[0].sizes[static_cast<size_t>(dim)];
    if (is_worth_exchanging(self, mesh_dim, dim, result, needed)) {
      all.push_back({{Shard(dim, factor)}, {Shard(dim)}});
    }
    return all;
  };
}

void add_upsampling(
    RuleRegistry& rules,
    const std::string& name,
    int64_t space,
    int64_t halo) {
  rules.dim_rule(name, upsample(space, halo))
      .with_localize(note_space(space))
      .with_local_kernel(upsample_local(space, halo))
      .scalar_values()
      .no_strided()
      .as_region();
  add_spatial(rules, name + "_backward", before_space(space, Linear::kInFirst))
      .with_traits({.size_arg = "input_size"});
}

void add_all_upsampling(RuleRegistry& rules) {
  for (const int64_t space : {1, 2, 3}) {
    const auto d = std::to_string(space) + "d";
    add_upsampling(rules, "upsample_nearest" + d, space, 0);
    add_upsampling(rules, "_upsample_nearest_exact" + d, space, 0);
  }
  add_upsampling(rules, "upsample_linear1d", 1, 1);
  add_upsampling(rules, "upsample_bilinear2d", 2, 1);
  add_upsampling(rules, "upsample_trilinear3d", 3, 1);
  add_upsampling(rules, "upsample_bicubic2d", 2, 2);
  for (const auto* name :
       {"_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"}) {
    const auto linear = before_space(2, Linear::kInFirst);
    add_spatial(rules, name, linear);
    add_spatial(rules, std::string(name) + "_backward", linear)
        .with_traits({.size_arg = "input_size"});
  }
}

// --- padding ----------------------------------------------------------------

std::vector<OutputMeta> reflection_pad2d_meta(const OpCall& call) {
  const auto& self = *call.inputs[0].spec;
  const auto pad = call.ints_arg("padding"); // left, right, top, bottom
  const auto height = self.sizes()[self.sizes().size() - 2];
  const auto width = self.sizes().back();
  DTENSOR_CHECK(
      pad.size() == 4 && pad[0] < width && pad[1] < width && pad[2] < height &&
          pad[3] < height,
      "[{}] cannot reflect {} around {}: padding must be less than the size. "
      "Use less padding.",
      call.name(),
      c10::IntArrayRef(pad),
      self);
  return {dense(
      with_space(call, {height + pad[2] + pad[3], width + pad[0] + pad[1]}),
      self.dtype())};
}

// Returns the rule of padding by rows of the input.
DimRule pad(int64_t space, bool reflects) {
  return [space, reflects, others = before_space(space, Linear::kInFirst)](
             const OpCall& call, int64_t mesh_dim) {
    auto all = others(call, mesh_dim);
    const auto& self = call.inputs[0];
    const auto dim = sharded_space(call, self, mesh_dim, self.dim() - space);
    if (dim == 0) {
      return all;
    }
    const auto pads = call.ints_arg("padding"); // of the last dimension first
    const auto before = pads[static_cast<size_t>(2 * (self.dim() - 1 - dim))];
    const EdgePadding padding{
        reflects, before, self.sizes()[static_cast<size_t>(dim)]};
    const auto needed = [&](Interval rows) { return padding.rows_of(rows); };
    const auto result = call.outputs[0].sizes[static_cast<size_t>(dim)];
    if (is_worth_exchanging(self, mesh_dim, dim, result, needed)) {
      all.push_back(all_alike(call, Shard(dim)));
    }
    return all;
  };
}

void add_all_padding(RuleRegistry& rules) {
  for (const bool reflects : {true, false}) {
    for (const int64_t space : {1, 2, 3}) {
      const std::string kind = reflects ? "reflection_pad" : "replication_pad";
      const auto name = kind + std::to_string(space) + "d";
      auto& forward = rules.dim_rule(name, pad(space, reflects))
                          .with_localize(note_space(space))
                          .with_local_kernel(pad_local(space, reflects))
                          .as_region();
      if (name == "reflection_pad2d") {
        forward.with_meta(reflection_pad2d_meta);
      }
      add_spatial_backward(rules, name + "_backward", space);
    }
  }
}

} // namespace

DTENSOR_RULES(resampling) {
  add_all_upsampling(rules);
  add_all_padding(rules);
}

} // namespace dtensor
