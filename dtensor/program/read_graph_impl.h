// SPDX-License-Identifier: BSD-3-Clause
// From the JSON of an exported program to its graph.
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

/// What messages say of the file that is read.
struct ProgramOrigin {
  std::string path;
  /// Where the program is to run; it was exported for any device.
  c10::Device device = c10::kCPU;
  /// Operators that the graph may call beside those that only compute.
  std::vector<std::string> allowed_operators = {};
  /// The record of the file that has the graph.
  std::string part = {};
};

/// Throws ValueError with the file's name for text that is no program, or of
/// another version of the format; NotImplementedError, with its line in the
/// Python source, for a call that cannot be run.
Graph read_graph(const std::string& json, const ProgramOrigin& origin);

/// Says that the file is none, and why.
[[noreturn]] void refuse_program(
    const ProgramOrigin& origin,
    const std::string& why);

/// Throws NotImplementedError with the call's line in the Python source.
[[noreturn]] void
refuse_call(const ProgramOrigin& origin, JsonView call, const std::string& why);

/// An input without its slot, and what the graph calls its value.
struct NamedInput {
  GraphInput input;
  std::string value;
};

/// Parts that the name of a parameter or a buffer may have: modules within
/// modules, of which LibTorch and the readers of plans call one after the
/// other.
constexpr size_t kMaxNameParts = 100;

/// One of the signature's inputs; nothing for a constant, which calls have
/// among their arguments. `tensors` are the graph's values by name.
std::optional<NamedInput>
read_input(JsonView spec, JsonView tensors, const ProgramOrigin& origin);

/// What a graph says of a tensor in `tensor_values`; nothing for a dtype or a
/// number of elements that this library does not have.
std::optional<ValueMeta> read_meta(JsonView about);

enum class ValueKind : uint8_t { kTensor, kNumber };

/// What an argument asks of who reads the call.
class ArgumentContext {
 public:
  ArgumentContext() = default;
  virtual ~ArgumentContext() = default;
  ArgumentContext(const ArgumentContext&) = delete;
  ArgumentContext& operator=(const ArgumentContext&) = delete;

  /// The slot of the value of that name. Throws ValueError for a value of
  /// another kind.
  virtual Slot find(JsonView name, ValueKind kind) const = 0;
  /// Where the program is to run.
  virtual c10::Device device() const = 0;
  /// And what it was exported for.
  virtual c10::DeviceType exported_for() const = 0;
  /// Says that the call has `what`, which cannot be taken.
  [[noreturn]] void refuse(const std::string& what) const {
    throw_of(what);
    TORCH_INTERNAL_ASSERT(false, "throw_of() throws");
  }

 private:
  virtual void throw_of(const std::string& what) const = 0;
};

/// The value of {"as_int": 3} for an argument of `type`. Throws for a value of
/// another type.
Operand read_operand(
    JsonView argument,
    const c10::TypePtr& type,
    const ArgumentContext& context);

/// A graph that is called in a scope of its own.
struct ScopedGraph {
  std::variant<BeginGradMode, BeginAutocast> begin;
  size_t graph = 0; // which argument it is; the values for it follow
};

/// That of a call of an operator of higher order, if it is one of those that
/// have no more than that: torch.no_grad() and torch.autocast().
std::optional<ScopedGraph> scoped_graph(
    JsonView call,
    const ArgumentContext& context);

/// The names of so many results in the tree that the graph module's forward()
/// returned: {"logits": x, "states": (y, z)} has logits, states.0 and states.1.
/// Positions where the file has no such tree of them.
std::vector<std::string>
output_names(JsonView module, size_t count, const ProgramOrigin& origin);

/// Makes products that torch.export has decomposed (addmm, mm and bmm by the
/// transpose of a parameter) calls of aten::linear, which modules and plans
/// know, and takes out the views that nothing uses then.
void find_linears(Graph& graph);

/// Sets the uses of all values, and the last ones: each is let go of after the
/// call that uses it last, or that makes it if nobody does.
void find_uses(Graph& graph);

/// Sets what calls write, and which arguments they must have themselves for
/// that.
void find_writes(Graph& graph);

/// "torch.ops.aten.add.Tensor" is add.Tensor of aten; nothing for what is no
/// operator.
std::optional<c10::OperatorName> operator_name(const std::string& target);
/// "Symbol('s77', positive=True, integer=True)" -> s77; other expressions,
/// which are of several symbols, as they are.
std::string symbol_of(const std::string& expression);
/// The innermost module of "L__self__,,M;L__self__fc,fc,torch...Linear".
std::string innermost_module(const std::string& stack);

/// A function of a tensor and a dtype, or none: throws ValueError if the tensor
/// has another one, float64 apart, to which a program may be moved.
c10::IValue check_dtype(c10::ArrayRef<c10::IValue> args);

/// A function of numbers and what it takes: `args` has a letter for each
/// argument, "t" for a tensor and "n" for a number.
struct ScalarSignature {
  ScalarFunction function = nullptr;
  std::string_view args;
};

/// Returns the function that the graph calls `target` ("_operator.mul",
/// "torch.ops.aten.sym_size.int"); null if it is none of numbers.
const ScalarSignature* scalar_function(const std::string& target);

} // namespace dtensor::detail
