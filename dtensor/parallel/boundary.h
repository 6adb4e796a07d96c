// SPDX-License-Identifier: BSD-3-Clause
// What a style of your own is made of: parameters in layouts, and a boundary
// where the module's parameter meets its input. A Linear whose columns are cut,
// with something added to its output:
//
//   struct MyStyle : ParallelStyle {
//     void apply(const StyleTarget& target) const override {
//       auto& linear = *target.module.as<torch::nn::Linear>();
//       distribute_parameter(target, linear.weight, Shard(0), "weight");
//       attach_boundary(target, {linear.weight}, BoundaryKind::kLinear,
//           {.output_layouts = Shard(-1), .output_fn = add_something});
//     }
//   };
//
// A style for a module that has no such parameter takes hooks
// (parallel/module_hooks.h).
#pragma once

#include <dtensor/ops/traits.h>
#include <dtensor/parallel/style.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

namespace dtensor {

/// `parameter` itself is to become a DTensor of layout `placement` on the
/// target's mesh, as distribute_parameter(parameter, mesh, ...) does it, and
/// its gradient to land in that layout. It happens when no style of the plan
/// refuses its module; a style that is applied by itself does it at once.
/// `name` is what messages call it. Throws RuntimeError if it is a DTensor in
/// another layout already.
DTENSOR_API void distribute_parameter(
    const StyleTarget& target,
    const at::Tensor& parameter,
    const Placement& placement,
    const std::string& name);

/// Makes the module's output of `input` (in desired_input_layouts) and of what
/// the operator made of it, DTensors both. Differentiable operators only.
using OutputFn = std::function<
    at::Tensor(const at::Tensor& input, const at::Tensor& output)>;

struct BoundaryOptions {
  /// Layout of a plain input (a DTensor knows its own).
  Placement input_layouts = Replicate();
  /// Layout that the operator gets the input in.
  Placement desired_input_layouts = Replicate();
  /// Layout of the module's output.
  Placement output_layouts = Replicate();
  /// Return the local part of the output instead of a DTensor.
  bool use_local_output = true;
  /// Called between the operator and the redistribution of its output; null:
  /// the operator's output is the module's. A bias that the module adds after
  /// its product (torch::nn::Linear of more than two dimensions) comes later.
  OutputFn output_fn = nullptr;
};

/// The operator of that kind which meets one of `parameters` (DTensors, or to
/// be) brings its input to desired_input_layouts and its output to
/// output_layouts. `kind` says which argument is the input: of kLinear (matmul,
/// addmm, linear), kEmbedding and kNorm (layer_norm, rms_norm). The weight
/// comes first. Throws ValueError without parameters; RuntimeError if the
/// module has a boundary already, or one that it is tied to another one.
DTENSOR_API void attach_boundary(
    const StyleTarget& target,
    at::TensorList parameters,
    BoundaryKind kind,
    const BoundaryOptions& options);

} // namespace dtensor
