// SPDX-License-Identifier: BSD-3-Clause
// visualize_sharding, sharding_svg: show which ranks hold each region of a
// tensor, as a table for terminals and as a picture.
//
//   visualize_sharding(x);
//   // f32[8, 6] on (dp=2, tp=2): S(0) P(sum)
//   //          Col 0-5
//   // -------  ------------
//   // Row 0-3  cpu:sum(0,1)
//   // Row 4-7  cpu:sum(2,3)
//
// Ranks are global. "cpu:0,2" are replicas on ranks 0 and 2, "cpu:sum(0,2)"
// terms of a partial sum. Uneven shards are shown with their actual sizes.
// Ranks without elements are listed below the table. A shard of a StridedShard
// consists of several regions.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/api.h>
#include <dtensor/layout/spec.h>

#include <string>

namespace dtensor {

/// Options of visualize_sharding.
struct VisualizeShardingOptions {
  /// Text before the layout, such as the tensor's name.
  std::string header = "";
  /// Gives each region an ANSI color.
  bool use_color = false;
  /// Prints a DTensor's text to std::cout on the rank whose mesh coordinate is
  /// all zero.
  bool print = true;
};

/// Returns the layout of `dtensor` as text, the same on every rank. A 1-D
/// tensor is a column of rows, a 2-D tensor a table. With more dimensions, a
/// table shows the two dimensions with the most shards, and there is a table
/// for each combination of intervals of the others. Communicates nothing.
/// Throws TypeError for a plain tensor.
/// Python: torch.distributed.tensor.debug.visualize_sharding, which prints, and
/// supports one or two dimensions.
DTENSOR_API std::string visualize_sharding(
    const at::Tensor& dtensor,
    const VisualizeShardingOptions& options = {});

/// The overload for a layout, which may be on a pure mesh (layout/mesh.h).
/// Prints nothing.
DTENSOR_API std::string visualize_sharding(
    const Spec& spec,
    const VisualizeShardingOptions& options = {});

/// Returns the layout as an SVG picture. Regions are to scale where their
/// labels permit, and partial regions are hatched. `header` precedes the
/// layout.
DTENSOR_API std::string sharding_svg(
    const at::Tensor& dtensor,
    const std::string& header = "");
DTENSOR_API std::string sharding_svg(
    const Spec& spec,
    const std::string& header = "");

} // namespace dtensor
