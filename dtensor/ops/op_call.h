// SPDX-License-Identifier: BSD-3-Clause
// OpCall: one operator call as a rule sees it: the schema, the arguments, the
// layouts of the tensors among them, and the global shapes of the results.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <dtensor/layout/spec.h>

#include <optional>
#include <vector>

namespace dtensor {

/// One tensor among the arguments; lists of tensors are flattened.
struct OpInput {
  SpecPtr spec;          // a plain scalar tensor counts as replicated
  int arg = 0;           // position in the schema
  int item = -1;         // position in the list, -1 outside lists
  bool is_plain = false; // no DTensor

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
/// an undefined tensor (a gradient that was not asked for).
struct OutputMeta {
  Sizes sizes;
  Sizes strides;
  at::ScalarType dtype = at::kFloat;
  bool defined = true;
  /// Where it begins in the memory of the first input, if it is a view of it.
  int64_t offset = 0;
  /// The number of dimensions.
  int64_t dim() const {
    return static_cast<int64_t>(sizes.size());
  }
};

class OpCall {
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
  c10::ArrayRef<c10::IValue> args; // tensors in it are DTensors
  DeviceMesh mesh;
  std::vector<OpInput> inputs;     // defined tensors, in order of arguments
  std::vector<OutputMeta> outputs; // tensor results, flattened
  /// Whether a gradient formula calls it, and whether that is one which brings
  /// a gradient through a write to a view (ops/in_backward_impl.h). Rules that
  /// look have OpRule::in_gradients.
  bool in_backward = false;
  bool in_view_backward = false;

  /// Position of argument `name` in the schema.
  size_t arg_index(std::string_view name) const;
  /// Argument `name`, and whether the schema has it.
  const c10::IValue& arg(std::string_view name) const {
    return args[arg_index(name)];
  }
  bool has_arg(std::string_view name) const;
  /// Position in `inputs` of the (non-list) tensor argument `name`; -1 if it
  /// is undefined.
  int input_index(std::string_view name) const;
  /// The same as a pointer, null if it is undefined.
  const OpInput* input(std::string_view name) const {
    const int i = input_index(name);
    return i < 0 ? nullptr : &inputs[static_cast<size_t>(i)];
  }

  /// Argument `name`, which is an int or a bool.
  int64_t int_arg(std::string_view name) const {
    return arg(name).toInt();
  }
  bool bool_arg(std::string_view name) const {
    return arg(name).toBool();
  }
  /// A list of ints; empty for None. An int becomes a list of one.
  std::vector<int64_t> ints_arg(std::string_view name) const;
  /// Dimension argument `name` of a tensor of `ndim` dimensions, resolved.
  int64_t dim_arg(std::string_view name, int64_t ndim) const;
  /// The dimensions a reduction reduces: argument `name`, all when it is
  /// absent, None or empty; resolved and sorted.
  std::vector<int64_t> dims_arg(std::string_view name, int64_t ndim) const;

  /// "aten::add.Tensor", for messages.
  std::string name() const;
};

} // namespace dtensor
