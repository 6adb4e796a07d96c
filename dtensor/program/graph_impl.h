// SPDX-License-Identifier: BSD-3-Clause
// A graph of operators in the form of torch.export: a list of calls over a
// table of values.
#pragma once

#include <dtensor/program/check_arguments_impl.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace dtensor::detail {

/// Index in the table of values.
using Slot = size_t;

/// Conversion of a value that is passed to an argument of another type.
enum class OperandConversion : uint8_t { kNone, kNumberToTensor, kIntToFloat };

struct ValueOperand {
  Slot slot = 0;
  OperandConversion conversion = OperandConversion::kNone;
};

enum class ListOf : uint8_t {
  kTensor,
  kOptionalTensor,
  kInt,
  kFloat,
  kBool,
  kNumber
};

/// A list that contains values. Each call gets a new list.
struct ListOperand {
  ListOf of = ListOf::kTensor;
  std::vector<std::variant<c10::IValue, Slot>> items;
  /// Returns the list with the entries of `values` that its slots refer to.
  c10::IValue filled(c10::ArrayRef<c10::IValue> values) const;
};

using Operand = std::variant<c10::IValue, ValueOperand, ListOperand>;

/// Calls `use` with each slot of the operand.
template <class Use>
void visit_slots(const Operand& operand, const Use& use) {
  if (const auto* value = std::get_if<ValueOperand>(&operand)) {
    use(value->slot);
  } else if (const auto* list = std::get_if<ListOperand>(&operand)) {
    for (const auto& item : list->items) {
      if (const auto* slot = std::get_if<Slot>(&item)) {
        use(*slot);
      }
    }
  }
}

/// Slots of one result of a call: one slot, those of a list, or none.
struct Result {
  bool is_list = false;
  std::vector<std::optional<Slot>> slots;
};

/// A function of numbers (such as the size of a tensor): arguments -> result.
using ScalarFunction = c10::IValue (*)(c10::ArrayRef<c10::IValue> args);

/// Turns recording of gradients on or off until the end of the scope.
struct BeginGradMode {
  bool enabled = false;
};

/// Turns autocast on or off until the end of the scope. Without `dtype` or
/// `caches`, the previous setting stays.
struct BeginAutocast {
  c10::DeviceType device = c10::kCPU;
  std::optional<c10::ScalarType> dtype;
  bool enabled = true;
  std::optional<bool> caches;
};

struct EndScope {};

/// Code that was not read, such as a branch that depends on data. It is never
/// called. Its arguments are the values that the code uses.
struct Unread {};

/// Values that share memory. Many calls refer to the same list.
using SharedSlots = std::shared_ptr<const std::vector<Slot>>;

/// An argument that must keep its memory: the call writes to it, or a result is
/// a view of it and one of the two is written later.
struct InPlaceArg {
  size_t arg = 0;
  /// All values that may share this memory; null for the memory of an input.
  SharedSlots sharing;
};

/// A call and its place in the source.
struct GraphNode {
  std::string target; // "aten::linear"
  std::variant<
      c10::OperatorHandle,
      ScalarFunction,
      BeginGradMode,
      BeginAutocast,
      EndScope,
      Unread>
      call = EndScope{};
  ArgumentCheck check = nullptr; // called before the operator
  bool is_random = false;        // draws random numbers
  std::vector<Operand> args;
  std::vector<Result> results;
  std::vector<Slot> last_uses; // values that are not used after this call
  std::vector<InPlaceArg> in_place_args;
  std::vector<SharedSlots> written; // values that this call may change
  std::string module;               // full name of the innermost module
  std::string source;               // " at model.py:12: x = self.fc(x)"
};

/// Calls `visit` with each slot that `node` fills.
template <class Visit>
void visit_results(const GraphNode& node, const Visit& visit) {
  for (const auto& result : node.results) {
    for (const auto& slot : result.slots) {
      if (slot) {
        visit(*slot);
      }
    }
  }
}

enum class InputKind : uint8_t { kParameter, kBuffer, kConstant, kUser };

/// A dimension of an input: its size at export, and its symbol if dynamic.
struct InputSize {
  int64_t value = 0;
  std::string symbol = {};
};

/// A symbol's range, both ends included.
struct SymbolRange {
  int64_t least = 0;
  std::optional<int64_t> most;
};

/// An input of the graph. A user's input that is not a tensor is a number.
struct GraphInput {
  InputKind kind = InputKind::kUser;
  Slot slot = 0;
  /// Name in the model of a parameter, buffer or constant; otherwise in the
  /// graph.
  std::string name;
  bool is_tensor = true;
  at::ScalarType dtype = at::kFloat;
  bool requires_grad = false;
  std::vector<InputSize> sizes;
};

/// A buffer, parameter or user's input that is updated after the call.
struct Mutation {
  size_t input = 0; // in Graph::inputs
  Slot value = 0;
};

/// An argument of a call that uses a value unchanged.
struct Use {
  size_t node = 0; // in Graph::nodes
  size_t arg = 0;
};

/// Dtype and sizes of a tensor when the program was exported.
struct ValueMeta {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes;
};

struct Graph {
  std::vector<GraphInput> inputs;
  std::vector<GraphNode> nodes;
  std::vector<Operand> outputs; // without mutations
  std::vector<std::string> output_names;
  std::vector<Mutation> mutations;
  std::map<std::string, SymbolRange> symbols;
  size_t num_slots = 0;
  std::vector<std::vector<Use>> uses; // by slot, in order of calls
  std::vector<Slot> memory; // by slot: the first slot that shares its memory
  std::map<Slot, ValueMeta> metas; // of tensors, as far as known
  bool casts = false;              // has autocast scopes
};

} // namespace dtensor::detail
