// SPDX-License-Identifier: BSD-3-Clause
// Converts the code of a TorchScript model to a graph of operators: the tensors
// of the model, and the calls that use them.
#pragma once

#include <dtensor/program/module_tree.h>
#include <dtensor/program/operator_graph.h>

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace torch::jit {
struct Graph;
struct Module;
struct Node;
struct Value;
} // namespace torch::jit

namespace dtensor::torchscript {

/// Returns the kind of a node, such as "aten::linear".
std::string_view kind_of(const torch::jit::Node& node);

/// Returns a copy of the graph of forward() with all functions and submodules
/// inlined, or null if there is no forward().
std::shared_ptr<torch::jit::Graph> inlined_forward(
    const torch::jit::Module& script);

/// A call with a weight, in any of its forms.
struct WeightCall {
  WeightRole role = WeightRole::kNone;
  const torch::jit::Value* weight = nullptr; // of a product: (out, in)
  const torch::jit::Value* input = nullptr;
  const torch::jit::Value* bias = nullptr; // null: no bias
};

/// Recognizes linear, embedding and layer_norm. matmul, mm and addmm with a
/// transposed weight count as linear.
std::optional<WeightCall> weight_call(const torch::jit::Node& node);

/// Returns "layers.0.fc.weight" for a value reached through the script's
/// attributes, and an empty text for other values.
std::string attribute_name(const torch::jit::Value& value);

/// Returns parameters and buffers. A weight's role comes from the Python class
/// of its module, or else from the calls of `forward`.
std::vector<ModuleTensor> script_tensors(
    const torch::jit::Module& script,
    const torch::jit::Graph* forward);

/// Arguments of forward(); nothing for an unknown argument.
using ScriptInputs = std::vector<std::optional<c10::IValue>>;

struct ReadScript {
  OperatorGraph graph;
  size_t num_products = 0; // includes embeddings
  size_t num_unread = 0;
};

/// Reads the calls that `forward` makes for these inputs, with all numbers
/// evaluated. Follows conditions that depend on attributes, None and the number
/// of dimensions. A call without an operator stands for each other condition,
/// loop, or call that needs data, and for the calls that use its results.
/// `tensors` are all tensors of the script. The script is
/// not changed, and no weight is read.
ReadScript read_script(
    const torch::jit::Module& script,
    const torch::jit::Graph& forward,
    const std::vector<ModuleTensor>& tensors,
    const ScriptInputs& inputs);

/// Runs a function that only TorchScript has: lists, tuples, numbers, queries.
void run_function(const torch::jit::Node& node, torch::jit::Stack& stack);

/// Returns true if the results contain tensors that are not among the
/// arguments.
bool makes_tensors(
    const torch::jit::Stack& results,
    const torch::jit::Stack& given);

/// Calls `use` with each tensor of a tensor, list, tuple or dictionary.
void visit_tensors_in(
    const c10::IValue& value,
    const std::function<void(const at::Tensor&)>& use);
void visit_tensors_in(
    const torch::jit::Stack& values,
    const std::function<void(const at::Tensor&)>& use);

/// Tensors of a script that is being read. Each tensor that the script holds or
/// gets as an argument is represented by a stand-in without data, which is a
/// value of the graph.
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
