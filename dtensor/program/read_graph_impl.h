// SPDX-License-Identifier: BSD-3-Clause
// Reader of an exported program's JSON.
#pragma once

#include <dtensor/program/graph_impl.h>
#include <dtensor/weights/json_document_impl.h>

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <optional>
#include <string>
#include <string_view>
#include <variant>
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

/// Throws ValueError, which says that the file is not a program, and the
/// reason.
[[noreturn]] void refuse_program(
    const ProgramOrigin& origin,
    const std::string& why);

/// Throws NotImplementedError with the call's line in the Python source.
[[noreturn]] void
refuse_call(const ProgramOrigin& origin, JsonView call, const std::string& why);

/// An input without its slot, and the name of its value in the graph.
struct NamedInput {
  GraphInput input;
  std::string value;
};

/// Maximum number of components in the name of a parameter or buffer. Each
/// component is a nested module, and LibTorch and the readers of plans recurse
/// into nested modules.
constexpr size_t kMaxNameParts = 100;

/// Parses one input of the signature. Returns nothing for a constant, because
/// calls contain it among their arguments. `tensors` are the graph's values by
/// name.
std::optional<NamedInput>
read_input(JsonView spec, JsonView tensors, const ProgramOrigin& origin);

/// Parses an entry of `tensor_values`. Returns nothing for a dtype or a number
/// of elements that this library does not support.
std::optional<ValueMeta> read_meta(JsonView about);

enum class ValueKind : uint8_t { kTensor, kNumber };

/// Data of the surrounding graph that parsing an argument needs.
class ArgumentContext {
 public:
  ArgumentContext() = default;
  virtual ~ArgumentContext() = default;
  ArgumentContext(const ArgumentContext&) = delete;
  ArgumentContext& operator=(const ArgumentContext&) = delete;

  /// Returns the slot of the value with that name. Throws ValueError for a
  /// value of another kind.
  virtual Slot find(JsonView name, ValueKind kind) const = 0;
  /// Device to run on.
  virtual c10::Device device() const = 0;
  /// Device type that the program was exported for.
  virtual c10::DeviceType exported_for() const = 0;
  /// Throws an error that names `what`, an unsupported property of the call.
  [[noreturn]] void refuse(const std::string& what) const {
    throw_of(what);
    TORCH_INTERNAL_ASSERT(false, "throw_of() throws");
  }

 private:
  virtual void throw_of(const std::string& what) const = 0;
};

/// Parses an operand such as {"as_int": 3} for an argument of `type`. Throws
/// for a value of another type.
Operand read_operand(
    JsonView argument,
    const c10::TypePtr& type,
    const ArgumentContext& context);

/// A graph that a call runs in a scope of its own.
struct ScopedGraph {
  std::variant<BeginGradMode, BeginAutocast> begin;
  size_t graph = 0; // argument that is the graph; inputs follow
};

/// Returns the graph of a higher-order operator that only runs a graph in a
/// scope: torch.no_grad() and torch.autocast(). Returns nothing for other
/// calls.
std::optional<ScopedGraph> scoped_graph(
    JsonView call,
    const ArgumentContext& context);

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

/// Implements a function of a tensor and an optional dtype: throws ValueError
/// if the tensor has another dtype. float64 is accepted because a program may
/// be converted to float64.
c10::IValue check_dtype(c10::ArrayRef<c10::IValue> args);

/// A function of numbers and its signature. `args` has one letter per argument:
/// "t" for a tensor and "n" for a number.
struct ScalarSignature {
  ScalarFunction function = nullptr;
  std::string_view args;
};

/// Returns the function that the graph calls `target` ("_operator.mul",
/// "torch.ops.aten.sym_size.int"), or null if `target` is not a function of
/// numbers.
const ScalarSignature* scalar_function(const std::string& target);

} // namespace dtensor::detail
