// SPDX-License-Identifier: BSD-3-Clause
// OpCall: an operator call as sharding propagation sees it. An OpCall holds the
// schema, the arguments, the layouts of the tensor arguments, and the global
// shapes of the results.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <dtensor/api.h>
#include <dtensor/layout/spec.h>

#include <optional>
#include <vector>

namespace dtensor {

/// A tensor argument; lists of tensors are flattened.
struct OpInput {
  SpecPtr spec;          // plain scalar tensors count as replicated
  int arg = 0;           // position in the schema
  int item = -1;         // position in the list, -1 outside lists
  bool is_plain = false; // true if it is not a DTensor

  /// Return a property of `spec`.
  SizesRef sizes() const {
    return spec->sizes();
  }
  int64_t dim() const {
    return spec->dim();
  }
  const Placement& placement(int64_t mesh_dim) const {
    return spec->placements()[static_cast<size_t>(mesh_dim)];
  }
};

/// Global shape of one tensor result. `defined` is false for a result that is
/// an undefined tensor (a gradient that was not requested).
struct OutputMeta {
  Sizes sizes;
  Sizes strides;
  at::ScalarType dtype = at::kFloat;
  bool defined = true;
  /// Offset in the storage of the first input, if the result is a view of it.
  int64_t offset = 0;
  /// Returns the number of dimensions.
  int64_t dim() const {
    return static_cast<int64_t>(sizes.size());
  }
};

class DTENSOR_API OpCall {
 public:
  OpCall(
      const c10::FunctionSchema& op_schema,
      c10::ArrayRef<c10::IValue> call_args,
      DeviceMesh op_mesh,
      std::vector<OpInput> tensors)
      : schema(op_schema),
        args(call_args),
        mesh(std::move(op_mesh)),
        inputs(std::move(tensors)) {}

  const c10::FunctionSchema& schema;
  c10::ArrayRef<c10::IValue> args; // as called, with DTensors
  DeviceMesh mesh;
  std::vector<OpInput> inputs;     // defined tensors, in argument order
  std::vector<OutputMeta> outputs; // tensor results, flattened
  /// True if a gradient formula makes the call. A rule that depends on this
  /// value sets OpRule::used_in_backward.
  bool in_backward = false;
  /// True if this gradient formula carries a gradient through a write to a
  /// view. A rule that depends on this value sets
  /// OpRule::depends_on_view_gradients.
  bool in_view_backward = false;

  /// Returns the position of argument `name` in the schema.
  size_t arg_index(std::string_view name) const;
  /// Returns argument `name`, which the schema must have.
  const c10::IValue& arg(std::string_view name) const {
    return args[arg_index(name)];
  }
  /// True if the schema has an argument `name`.
  bool has_arg(std::string_view name) const;
  /// Returns the position in `inputs` of the (non-list) tensor argument `name`;
  /// -1 if it is undefined.
  int input_index(std::string_view name) const;
  /// Returns the (non-list) tensor argument `name`; null if it is undefined.
  const OpInput* input(std::string_view name) const {
    const int i = input_index(name);
    return i < 0 ? nullptr : &inputs[static_cast<size_t>(i)];
  }

  /// Returns argument `name`, an int or a bool.
  int64_t int_arg(std::string_view name) const {
    return arg(name).toInt();
  }
  bool bool_arg(std::string_view name) const {
    return arg(name).toBool();
  }
  /// Returns a list of ints, empty for None. An int becomes a list with one
  /// element.
  std::vector<int64_t> ints_arg(std::string_view name) const;
  /// Returns dimension argument `name` of a tensor of `ndim` dimensions,
  /// wrapped to [0, ndim).
  int64_t dim_arg(std::string_view name, int64_t ndim) const;
  /// Returns the dimensions that a reduction reduces: argument `name`, or all
  /// if it is absent, None or empty. The dimensions are wrapped and sorted.
  std::vector<int64_t> dims_arg(std::string_view name, int64_t ndim) const;

  /// Returns the name for messages: "aten::add.Tensor".
  std::string name() const;
};

} // namespace dtensor
