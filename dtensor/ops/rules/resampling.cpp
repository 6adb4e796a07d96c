// SPDX-License-Identifier: BSD-3-Clause
// Operators that change the spatial dimensions of (samples..., channels,
// space...): upsampling, padding by reflection or replication, moves between
// space and channels, and sampling by a grid. In upsampling and padding,
// sharded spatial dimensions may stay sharded: ranks exchange the rows from
// which their rows of the result are computed.
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

// --- fold and unfold: channels times the elements of a kernel ---------------

int64_t kernel_elements(const OpCall& call) {
  const auto kernel = call.ints_arg("kernel_size");
  return element_for(kernel, 0) * element_for(kernel, 1);
}

std::vector<OutputMeta> im2col_meta(const OpCall& call) {
  const auto& self = *call.inputs[0].spec;
  DTENSOR_CHECK(
      self.dim() == 3 || self.dim() == 4,
      "[{}] needs (samples, channels, height, width), got {}. Reshape it.",
      call.name(),
      self);
  const auto counts =
      windows_of(call, self.sizes().slice(self.sizes().size() - 2), false);
  Sizes sizes(self.sizes().begin(), self.sizes().end() - 2);
  sizes.back() *= kernel_elements(call);
  sizes.push_back(counts[0] * counts[1]);
  return {dense(sizes, self.dtype())};
}

std::vector<OutputMeta> col2im_meta(const OpCall& call) {
  const auto& self = *call.inputs[0].spec;
  const auto space = call.ints_arg("output_size");
  const auto counts = windows_of(call, space, false);
  const auto ndim = self.sizes().size();
  DTENSOR_CHECK(
      (ndim == 2 || ndim == 3) &&
          self.sizes()[ndim - 2] % kernel_elements(call) == 0 &&
          self.sizes()[ndim - 1] == counts[0] * counts[1],
      "[{}] {} does not hold {} of {} by {} windows. Pass (samples, channels "
      "x kernel elements, windows).",
      call.name(),
      self,
      pluralize(kernel_elements(call), "element"),
      counts[0],
      counts[1]);
  Sizes sizes(self.sizes().begin(), self.sizes().end() - 1);
  sizes.back() /= kernel_elements(call);
  sizes.append(space.begin(), space.end());
  return {dense(sizes, self.dtype())};
}

// Returns the strategies of a linear operator that multiplies or divides the
// number of channels by `factor`. Dimensions before the channels may be
// sharded, and channels in blocks of `factor`.
Strategies blocks_of_channels(
    const OpCall& call,
    int64_t channels,
    const Placement& in,
    const Placement& out) {
  Strategies all;
  if (call.inputs[0].spec->numel() == 0) {
    return all;
  }
  add_linear_in_first(call, all);
  for (int64_t d = 0; d < channels; ++d) {
    all.push_back({{Shard(d)}, {Shard(d)}});
  }
  all.push_back({{out}, {in}});
  return all;
}

Strategies im2col(const OpCall& call, int64_t) {
  const auto c = call.inputs[0].dim() - 3;
  return blocks_of_channels(call, c, Shard(c), Shard(c, kernel_elements(call)));
}

Strategies col2im(const OpCall& call, int64_t) {
  const auto c = call.inputs[0].dim() - 2;
  return blocks_of_channels(call, c, Shard(c, kernel_elements(call)), Shard(c));
}

// Returns the strategies of an operator that moves blocks of `in` by `in`
// elements of each channel to blocks of `out` by `out`. One of the numbers is
// 1. Dimensions before the channels, channels, and both spatial dimensions may
// be sharded.
Strategies blocks_of_space(const OpCall& call, int64_t in, int64_t out) {
  const auto c = call.inputs[0].dim() - 3;
  auto all =
      blocks_of_channels(call, c, Shard(c, out * out), Shard(c, in * in));
  for (const int64_t d : {c + 1, c + 2}) {
    if (!all.empty()) {
      all.push_back({{Shard(d, out)}, {Shard(d, in)}});
    }
  }
  return all;
}

Strategies pixel_shuffle(const OpCall& call, int64_t) {
  return blocks_of_space(call, 1, call.int_arg("upscale_factor"));
}

// Returns the shape of an empty operand, which pixel_unshuffle returns
// unchanged. For other operands, returns the shapes of the Meta kernel.
std::vector<OutputMeta> unchanged_if_empty(const OpCall& call) {
  return call.inputs[0].spec->numel() == 0 ? dense_like_first(call)
                                           : std::vector<OutputMeta>{};
}

Strategies pixel_unshuffle(const OpCall& call, int64_t) {
  return blocks_of_space(call, call.int_arg("downscale_factor"), 1);
}

// Returns the strategies of channel_shuffle, which permutes dimension 1.
Strategies channel_shuffle(const OpCall& call, int64_t) {
  Strategies all;
  add_linear_in_first(call, all);
  for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
    if (d != 1) {
      all.push_back(all_alike(call, Shard(d)));
    }
  }
  return all;
}

// --- grid_sample: input (N, C, space...), grid (N, space..., coordinates) ----

Strategies grid_sampler(const OpCall& call, int64_t) {
  Strategies all{
      {{Shard(0)}, {Shard(0), Shard(0)}},
      {{Shard(1)}, {Shard(1), Replicate()}},
      {{partial_sum()}, {partial_sum(), Replicate()}}};
  for (int64_t d = 2; d < call.outputs[0].dim(); ++d) {
    all.push_back({{Shard(d)}, {Replicate(), Shard(d - 1)}});
  }
  return all;
}

// Returns the strategies for grad_output, input, grid.
Strategies grid_sampler_backward(const OpCall& call, int64_t) {
  Strategies all{
      {{Shard(0), Shard(0)}, {Shard(0), Shard(0), Shard(0)}},
      {{Shard(1), partial_sum()}, {Shard(1), Shard(1), Replicate()}},
      {{partial_sum(), partial_sum()},
       {partial_sum(), Replicate(), Replicate()}}};
  for (int64_t d = 2; d < call.inputs[0].dim(); ++d) {
    all.push_back(
        {{partial_sum(), Shard(d - 1)}, {Shard(d), Replicate(), Shard(d - 1)}});
  }
  return all;
}

std::vector<OutputMeta> grid_sampler_meta(const OpCall& call) {
  const auto& input = *call.inputs[0].spec;
  const auto& grid = *call.inputs[1].spec;
  DTENSOR_CHECK(
      input.dim() == grid.dim() && input.sizes()[0] == grid.sizes()[0] &&
          grid.sizes().back() == grid.dim() - 2,
      "[{}] a grid of {} does not fit an input of {}. Pass (samples, "
      "space..., coordinates).",
      call.name(),
      grid,
      input);
  Sizes sizes(input.sizes().begin(), input.sizes().begin() + 2);
  sizes.append(grid.sizes().begin() + 1, grid.sizes().end() - 1);
  return {dense(sizes, input.dtype())};
}

std::vector<OutputMeta> grid_sampler_backward_meta(const OpCall& call) {
  const auto mask = call.arg("output_mask").toBoolList();
  const auto& input = *call.inputs[1].spec;
  const auto& grid = *call.inputs[2].spec;
  return {
      mask[0] ? dense_like(input) : undefined(),
      mask[1] ? dense_like(grid) : undefined()};
}

} // namespace

DTENSOR_RULES(resampling) {
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

DTENSOR_RULES(fold) {
  add_spatial(rules, "im2col", im2col).with_meta(im2col_meta);
  add_spatial(rules, "col2im", col2im).with_meta(col2im_meta);
  add_spatial(rules, "pixel_shuffle", pixel_shuffle);
  add_spatial(rules, "pixel_unshuffle", pixel_unshuffle)
      .with_meta(unchanged_if_empty);
  add_spatial(rules, "channel_shuffle", channel_shuffle)
      .with_meta(dense_like_first);
  for (const std::string name : {"grid_sampler_2d", "grid_sampler_3d"}) {
    add_spatial(rules, name, grid_sampler).with_meta(grid_sampler_meta);
    add_spatial(rules, name + "_backward", grid_sampler_backward)
        .with_meta(grid_sampler_backward_meta);
  }
}

} // namespace dtensor
