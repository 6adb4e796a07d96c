// SPDX-License-Identifier: BSD-3-Clause
// OperatorGraph: the operator calls of a model, as values that a program makes
// from a format of its own. find_tp_plan() finds a plan in an OperatorGraph.
//
//   // relu(x @ up.t()) @ down.t()
//   OperatorGraph graph;
//   const auto x = graph.add_input(torch::empty({8, 16}, torch::kMeta));
//   const auto up = graph.add_input(model->up->weight);
//   const auto down = graph.add_input(model->down->weight);
//   const auto h = graph.add_call(linear, {x, up, c10::IValue()});
//   const auto a = graph.add_call(relu, {h});
//   graph.outputs = {graph.add_call(linear, {a, down, c10::IValue()})};
//   std::cout << find_tp_plan(graph, *model);   // up colwise, down rowwise
//
// The values of a graph are tensors. Sizes and other numbers are constants, for
// inputs of one size.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <dtensor/api.h>

#include <cstddef>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace dtensor {

struct DTENSOR_API OperatorGraph {
  /// A tensor: an input, or a result of a call.
  struct Value {
    size_t index = 0;
  };
  /// An element of a list: a constant, such as None, or a value.
  using Item = std::variant<c10::IValue, Value>;
  /// An argument of a call: a constant, a value, or a list.
  using Argument = std::variant<c10::IValue, Value, std::vector<Item>>;

  /// A tensor that is an argument of the graph or stored in it.
  struct Input {
    Value value;
    /// Tensor with the sizes and dtype of the input. For a parameter of the
    /// model, the parameter itself. The elements of other tensors are not used,
    /// so these may be on the meta device.
    at::Tensor tensor;
  };

  /// Call of an operator.
  struct Call {
    /// The operator. nullopt stands for code that cannot be described, such as
    /// a branch that depends on data: weights that the code uses stay
    /// unsharded.
    std::optional<c10::OperatorHandle> op;
    /// One argument for each parameter of the schema, including those with
    /// defaults.
    std::vector<Argument> args;
    /// Tensors of each result in the schema; nullopt for a tensor that is not
    /// used. A call that writes to a tensor returns a new value for that
    /// tensor.
    std::vector<std::vector<std::optional<Value>>> results;
    /// Full name of the module that makes the call. If several modules share a
    /// weight, the plan names this module for the call.
    std::string module;
  };

  std::vector<Input> inputs;
  std::vector<Call> calls; // in the order of execution
  std::vector<Value> outputs;
  size_t num_values = 0;

  /// Returns a new value, for an input or a result.
  Value new_value() {
    return {num_values++};
  }
  /// Adds an input.
  Value add_input(const at::Tensor& tensor);
  /// Adds a call whose only result is one tensor.
  Value add_call(
      const c10::OperatorHandle& op,
      std::vector<Argument> args,
      std::string module = "");
};

} // namespace dtensor
