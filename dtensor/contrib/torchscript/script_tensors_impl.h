// SPDX-License-Identifier: BSD-3-Clause
// Tensors of a script that is being read. Each tensor that the script holds or
// gets as an argument is represented by a stand-in without data, which is a
// value of the graph.
#pragma once

#include <dtensor/program/operator_graph.h>

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <functional>
#include <unordered_map>
#include <vector>

namespace dtensor::torchscript {

/// Calls `use` with each tensor of a tensor, list, tuple or dictionary.
void visit_tensors_in(
    const c10::IValue& value,
    const std::function<void(const at::Tensor&)>& use);

class ScriptTensors {
 public:
  /// Adds to `graph`, which must outlive this object.
  explicit ScriptTensors(OperatorGraph& graph) : graph_(graph) {}

  /// Adds a tensor that the script holds, possibly under several names.
  void add_held(const at::Tensor& t);
  /// Adds an argument of forward(), including tensors in lists, tuples and
  /// dictionaries. Returns the value with stand-ins.
  c10::IValue add_given(const c10::IValue& value);

  /// Returns true for a stand-in and for a tensor that a stand-in represents.
  bool is_read(const at::Tensor& t) const;
  /// Returns the value with stand-ins for its tensors. Tensors without a value
  /// become inputs of the graph.
  c10::IValue described(const c10::IValue& value);

  /// Returns the latest value of a stand-in or of the result of a call.
  OperatorGraph::Value value_of(const at::Tensor& t) const {
    return values_.at(t.unsafeGetTensorImpl());
  }
  /// Creates a value for a result of a call, or for a tensor that a call wrote.
  OperatorGraph::Value define(const at::Tensor& t);
  /// Returns the graph's values for all tensors of `value`.
  std::vector<OperatorGraph::Value> values_in(const c10::IValue& value) const;

 private:
  at::Tensor add(const at::Tensor& t);
  at::Tensor describe(const at::Tensor& t);
  const at::Tensor* find(const at::Tensor& t) const;

  OperatorGraph& graph_;
  std::unordered_map<const void*, at::Tensor> standing_; // by original
  std::unordered_map<const void*, OperatorGraph::Value> values_;
  std::vector<at::Tensor> alive_; // keeps addresses unique
};

/// Returns the argument of a call. All tensors of the argument must have
/// values.
OperatorGraph::Argument argument_of(
    const c10::IValue& value,
    const ScriptTensors& tensors);

} // namespace dtensor::torchscript
