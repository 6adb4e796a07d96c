// SPDX-License-Identifier: BSD-3-Clause
// Reader of an exported program's JSON.
#pragma once

#include <dtensor/program/graph_impl.h>
#include <dtensor/weights/json_document_impl.h>

#include <c10/core/Device.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace dtensor::detail {

/// Origin of the program, for error messages and checks.
struct ProgramOrigin {
  std::string path;
  /// Device to run on. The program may have been exported for another device.
  c10::Device device = c10::kCPU;
  /// Additional operators that the graph may call (see LoadProgramOptions).
  std::vector<std::string> allowed_operators = {};
  /// Record of the file that contains the graph.
  std::string part = {};
};

/// Parses the graph. Throws ValueError with the file's name for text that is
/// not a program or has another version of the format. Throws
/// NotImplementedError for a call that cannot be run, with the call's line in
/// the Python source.
Graph read_graph(const std::string& json, const ProgramOrigin& origin);

/// Throws ValueError, which says why the file is not a program.
[[noreturn]] void refuse_program(
    const ProgramOrigin& origin,
    const std::string& why);

/// An input without its slot, and the name of its value in the graph.
struct NamedInput {
  GraphInput input;
  std::string value;
};

/// Maximum number of components in the name of a parameter or buffer. LibTorch
/// and the readers of plans recurse into nested modules.
constexpr size_t kMaxNameParts = 100;

/// Parses one input of the signature. Returns nothing for a constant, because
/// calls contain it among their arguments. `tensors` are the graph's values by
/// name.
std::optional<NamedInput>
read_input(JsonView spec, JsonView tensors, const ProgramOrigin& origin);

/// Parses an entry of `tensor_values`. Returns nothing for a dtype or a number
/// of elements that this library does not support.
std::optional<ValueMeta> read_meta(JsonView about);

/// A function of numbers and its signature. `args` has one letter per argument:
/// "t" for a tensor and "n" for a number.
struct ScalarSignature {
  ScalarFunction function = nullptr;
  std::string_view args;
};

enum class ValueKind : uint8_t { kTensor, kNumber };

/// Adds the contents of a JSON graph, at the top level or nested, to a Graph.
/// Names of values are local to one graph; a nested graph has its own names.
class GraphReader {
 public:
  /// `tensors` describes the graph's tensors, by name.
  GraphReader(
      const ProgramOrigin& origin,
      c10::DeviceType exported_for,
      std::optional<JsonView> tensors,
      Graph& graph)
      : origin_(origin),
        exported_for_(exported_for),
        tensors_(tensors),
        graph_(graph) {}

  void read_signature(JsonView signature);
  void read_nodes(JsonView nodes);
  void read_outputs(JsonView signature);

  /// Returns the slot of the value with that name. Throws ValueError for a
  /// value of another kind.
  Slot find(JsonView name, ValueKind kind) const;
  /// Device to run on.
  c10::Device device() const {
    return origin_.device;
  }
  at::ScalarType dtype_of(JsonView number) const;
  /// Throws an error that names `what`, an unsupported property of the call.
  [[noreturn]] void refuse(const std::string& what) const;

 private:
  struct Value {
    Slot slot = 0;
    ValueKind kind = ValueKind::kTensor;
  };

  Slot define(const std::string& name, ValueKind kind);

  void read_output(const std::string& kind, JsonView spec);
  void add_mutation(JsonView spec, InputKind kind, const char* key);

  void read_call(JsonView call);
  void read_scalar_call(
      JsonView call,
      const ScalarSignature& signature,
      GraphNode& node);
  void read_dtype_check(JsonView call);
  void read_operator(JsonView call, const std::string& target, GraphNode& node);
  c10::OperatorHandle operator_of(const std::string& target) const;
  void read_arguments(
      JsonView call,
      const c10::FunctionSchema& schema,
      GraphNode& node);
  /// Reads the results listed in `returns`. A null `returns` stands for a
  /// single number.
  void read_results(
      JsonView call,
      const std::vector<c10::Argument>* returns,
      GraphNode& node);
  Result read_result(const JsonMember& output, const c10::Type* type);

  BeginAutocast read_autocast(JsonView inputs) const;
  /// Reads the graph that is argument `first`, in a scope. Its inputs follow.
  template <class Mode>
  void read_scope(JsonView call, const Mode& mode, size_t first);
  const Value& value_of(JsonView operand) const;

  const ProgramOrigin& origin_;
  c10::DeviceType exported_for_;
  std::optional<JsonView> tensors_;
  std::optional<JsonView> call_; // call that is being read
  Graph& graph_;
  std::map<std::string, Value> values_;  // by name
  std::map<std::string, size_t> inputs_; // in Graph::inputs, by name
};

/// Returns true for the types of single numbers, bools and symbols.
bool is_number(c10::TypeKind kind);

/// Parses an operand such as {"as_int": 3} for an argument of `type`. Throws
/// for a value of another type.
Operand read_operand(
    JsonView argument,
    const c10::TypePtr& type,
    const GraphReader& graph);

/// Returns the device for "cpu" or "cuda". Throws ValueError for other texts.
c10::Device read_device(JsonView name);

/// Returns the names of `count` results in the tree that the graph module's
/// forward() returned. {"logits": x, "states": (y, z)} gives logits, states.0
/// and states.1. If the file has no such tree, returns positions.
std::vector<std::string>
output_names(JsonView module, size_t count, const ProgramOrigin& origin);

/// Replaces products that torch.export has decomposed (addmm, mm and bmm with
/// the transpose of a parameter) by calls of aten::linear, so that modules and
/// plans recognize these products. Removes views that become unused.
void find_linears(Graph& graph);

/// Sets the uses and last uses of all values. A value is released after its
/// last use, or after the call that makes it if the value is never used.
void find_uses(Graph& graph);

/// Sets the values that each call writes, and the arguments that must keep
/// their memory for these writes.
void find_writes(Graph& graph);

/// "torch.ops.aten.add.Tensor" -> add.Tensor of aten. Returns nothing for a
/// text that is not an operator.
std::optional<c10::OperatorName> operator_name(const std::string& target);
/// "Symbol('s77', positive=True, integer=True)" -> s77. Expressions of several
/// symbols are returned unchanged.
std::string symbol_of(const std::string& expression);
/// Returns the innermost module of
/// "L__self__,,M;L__self__fc,fc,torch...Linear".
std::string innermost_module(const std::string& stack);
/// Returns the innermost line of a Python stack trace that is not in PyTorch:
/// " at model.py:12: x = self.fc(x)". Returns an empty text if there is none.
std::string source_line(const std::string& stack_trace);

/// Implements a function of a tensor and an optional dtype: throws ValueError
/// if the tensor has another dtype. float64 is accepted because a program may
/// be converted to float64.
c10::IValue check_dtype(c10::ArrayRef<c10::IValue> args);

/// Returns the function `target`, such as "_operator.mul". Returns null if
/// `target` is not a function of numbers.
const ScalarSignature* scalar_function(const std::string& target);

} // namespace dtensor::detail
