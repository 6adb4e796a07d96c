// SPDX-License-Identifier: BSD-3-Clause
// visualize_sharding, sharding_svg: which ranks hold which part of a tensor, as
// a table for terminals and as a picture.
//
//   visualize_sharding(x);
//   // f32[8, 6] on (dp=2, tp=2): S(0) P(sum)
//   //          Col 0-5
//   // -------  ------------
//   // Row 0-3  cpu:sum(0,1)
//   // Row 4-7  cpu:sum(2,3)
//
// Ranks are global. "cpu:0,2" are copies, "cpu:sum(0,2)" terms of a partial
// sum. Uneven parts are shown as they are, and who holds nothing is named below
// the table. A part of a StridedShard is several regions.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/api.h>
#include <dtensor/layout/spec.h>

#include <string>

namespace dtensor {

/// Options of visualize_sharding.
struct VisualizeShardingOptions {
  /// Stands before the layout, as a name of the tensor.
  std::string header = "";
  /// ANSI colours: each region has one of its own.
  bool use_color = false;
  /// Of a DTensor: the rank whose coordinate in the mesh is all zero prints the
  /// text to std::cout.
  bool print = true;
};

/// The layout of `dtensor` as a text, the same on every rank. One dimension is
/// a column of rows, two are a table; of more, those two that are cut most are,
/// and there is a table for each combination of pieces of the others.
/// Communicates nothing. Throws TypeError for a plain tensor.
/// Python: torch.distributed.tensor.debug.visualize_sharding, which prints, and
/// takes one or two dimensions.
DTENSOR_API std::string visualize_sharding(
    const at::Tensor& dtensor,
    const VisualizeShardingOptions& options = {});

/// The same of a layout alone, as on a mesh that is a plan yet. Prints nothing.
DTENSOR_API std::string visualize_sharding(
    const Spec& spec,
    const VisualizeShardingOptions& options = {});

/// The same as the text of an SVG file: regions to scale as far as their labels
/// allow, partial ones hatched. `header` stands before the layout.
DTENSOR_API std::string sharding_svg(
    const at::Tensor& dtensor,
    const std::string& header = "");
DTENSOR_API std::string sharding_svg(
    const Spec& spec,
    const std::string& header = "");

} // namespace dtensor
