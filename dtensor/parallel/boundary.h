// SPDX-License-Identifier: BSD-3-Clause
// Building blocks of custom styles. set_parameter_placement() distributes a
// parameter. attach_boundary() redistributes the input and output of the
// operator that uses the parameter. Example: a Linear sharded by columns, with
// an addition to its output:
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
// A style for a module without parameters uses hooks (parallel/module_hooks.h).
#pragma once

#include <dtensor/ops/traits.h>
#include <dtensor/parallel/style.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>

namespace dtensor {

/// Turns `parameter` itself into a DTensor with `placement` on the target's
/// mesh, like distribute_parameter(parameter, mesh, ...). Its gradient gets the
/// same layout. In a plan, the change is deferred until every style has
/// accepted its module. `name` appears in error messages. Throws RuntimeError
/// if the parameter is already a DTensor in another layout.
DTENSOR_API void set_parameter_placement(
    const StyleTarget& target,
    const at::Tensor& parameter,
    const Placement& placement,
    const std::string& name);

/// Computes the module's output from the operator's input (in
/// desired_input_layouts) and output. Both tensors are DTensors. Must use
/// differentiable operators only.
using OutputFn = std::function<
    at::Tensor(const at::Tensor& input, const at::Tensor& output)>;

/// Layouts of a boundary.
struct BoundaryOptions {
  /// Layout of a plain input. A DTensor input has its own.
  Placement input_layouts = Replicate();
  /// Layout to which the input is redistributed before the operator.
  Placement desired_input_layouts = Replicate();
  /// Layout of the module's output.
  Placement output_layouts = Replicate();
  /// Returns the local tensor of the output instead of a DTensor.
  bool use_local_output = true;
  /// Called before the output is redistributed. The operator's output includes
  /// the bias of a torch::nn::Linear. Null: the operator's output is the
  /// module's output.
  OutputFn output_fn = nullptr;
};

/// Redistributes the input and output of each operator of `kind` that uses one
/// of `parameters` to desired_input_layouts and output_layouts. `kind` selects
/// the operators, and with them the argument that is the input: kLinear
/// (matmul, addmm, linear), kEmbedding, kNorm (layer_norm, rms_norm). The first
/// parameter must be the weight. The parameters must be DTensors already, or
/// become DTensors by the same plan. Outside of a plan, call
/// set_parameter_placement() first.
/// Throws ValueError without parameters, and RuntimeError if a parameter is
/// plain, or if the module already has a boundary or is tied to a module with a
/// different boundary.
DTENSOR_API void attach_boundary(
    const StyleTarget& target,
    at::TensorList parameters,
    BoundaryKind kind,
    const BoundaryOptions& options);

} // namespace dtensor
