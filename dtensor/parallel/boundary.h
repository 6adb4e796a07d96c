// SPDX-License-Identifier: BSD-3-Clause
// Building blocks of custom styles: parameters in layouts, and a boundary,
// which redistributes input and output of the operator that uses a parameter.
// Example: a Linear sharded by columns, with an addition to its output:
//
//   struct MyStyle : ParallelStyle {
//     void apply(const StyleTarget& target) const override {
//       auto& linear = *target.module.as<torch::nn::Linear>();
//       set_parameter_placement(target, linear.weight, Shard(0), "weight");
//       attach_boundary(target, {linear.weight}, BoundaryKind::kLinear,
//           {.output_layouts = Shard(-1), .output_fn = add_something});
//     }
//   };
//
// A style for a module without such a parameter uses hooks
// (parallel/module_hooks.h).
#pragma once

#include <dtensor/ops/traits.h>
#include <dtensor/parallel/style.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

namespace dtensor {

/// Turns `parameter` itself into a DTensor with `placement` on the target's
/// mesh, like distribute_parameter(parameter, mesh, ...). Its gradient gets the
/// same layout. The change is deferred until every style of the plan has
/// accepted its module; a style that is applied on its own acts at once. `name`
/// appears in error messages. Throws RuntimeError if the parameter is a DTensor
/// in another layout already.
DTENSOR_API void set_parameter_placement(
    const StyleTarget& target,
    const at::Tensor& parameter,
    const Placement& placement,
    const std::string& name);

/// Returns the module's output from its input (in desired_input_layouts) and
/// the operator's output. Both are DTensors. Must use differentiable operators
/// only.
using OutputFn = std::function<
    at::Tensor(const at::Tensor& input, const at::Tensor& output)>;

struct BoundaryOptions {
  /// Layout of a plain input. A DTensor input has its own.
  Placement input_layouts = Replicate();
  /// Layout in which the operator gets the input.
  Placement desired_input_layouts = Replicate();
  /// Layout of the module's output.
  Placement output_layouts = Replicate();
  /// Returns the local tensor of the output instead of a DTensor.
  bool use_local_output = true;
  /// Called between the operator and the redistribution of its output, which
  /// includes the bias of a torch::nn::Linear. Null: the operator's output is
  /// the module's output.
  OutputFn output_fn = nullptr;
};

/// Redistributes the input and output of each operator of `kind` that uses one
/// of `parameters` (DTensors, now or by this plan) to desired_input_layouts and
/// output_layouts. `kind` names the operators, and so which argument is the
/// input: kLinear (matmul, addmm, linear), kEmbedding, kNorm (layer_norm,
/// rms_norm). The weight must be the first parameter. Throws ValueError without
/// parameters, and RuntimeError if the module has a boundary already or is tied
/// to a module with a different one.
DTENSOR_API void attach_boundary(
    const StyleTarget& target,
    at::TensorList parameters,
    BoundaryKind kind,
    const BoundaryOptions& options);

} // namespace dtensor
