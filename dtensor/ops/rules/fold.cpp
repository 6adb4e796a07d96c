// SPDX-License-Identifier: BSD-3-Clause
// Operators that move spatial dimensions into channels or out of them, and
// sampling by a grid.
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/rules/shapes_impl.h>
#include <dtensor/ops/rules/spatial_impl.h>

#include <string>

namespace dtensor {
namespace {

using namespace detail;

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
      detail::pluralize(kernel_elements(call), "element"),
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
