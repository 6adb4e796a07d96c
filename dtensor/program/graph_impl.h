// SPDX-License-Identifier: BSD-3-Clause
// A graph of operators, as torch.export writes it: calls in order, over a table
// of values.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace dtensor::detail {

/// The place that errors of a running program name.
inline constexpr const char* kProgram = "Program";

/// A place in the table of values.
using Slot = size_t;

/// What a value becomes on its way into an argument of another type.
enum class Conversion : uint8_t { kNone, kNumberToTensor, kIntToFloat };

struct ValueOperand {
  Slot slot = 0;
  Conversion conversion = Conversion::kNone;
};

enum class ListOf : uint8_t {
  kTensor,
  kOptionalTensor,
  kInt,
  kFloat,
  kBool,
  kNumber
};

/// A list with values in it, which is made anew for each call.
struct ListOperand {
  ListOf of = ListOf::kTensor;
  std::vector<std::variant<c10::IValue, Slot>> items;
};

/// The list, of `values` by slot.
c10::IValue make_list(
    const ListOperand& list,
    c10::ArrayRef<c10::IValue> values);

using Operand = std::variant<c10::IValue, ValueOperand, ListOperand>;

/// Calls `use` with each value that the operand takes.
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

/// Values that one result of a call goes to: one, those of a list, or none.
struct Result {
  bool is_list = false;
  std::vector<std::optional<Slot>> slots;
};

/// A function of numbers, as the size of a tensor: arguments -> result.
using ScalarFunction = c10::IValue (*)(c10::ArrayRef<c10::IValue> args);

/// From here on, until the end of that scope, gradients are recorded or not.
struct BeginGradMode {
  bool enabled = false;
};

/// From here on, until the end of that scope, operators cast what they are
/// given, or do not. Without a dtype or `caches`: as it was before.
struct BeginAutocast {
  c10::DeviceType device = c10::kCPU;
  std::optional<c10::ScalarType> dtype;
  bool enabled = true;
  std::optional<bool> caches;
};

struct EndScope {};

/// What nobody calls: it stands for what a graph was read without, as a branch
/// that depends on data, and for all values that this takes.
struct Unread {};

/// An argument whose memory the call needs: it writes to it, or a result is a
/// view of it and one of both is written later.
struct OwnArg {
  size_t arg = 0;
  /// All values that may share this memory; none if it is an input's.
  std::vector<Slot> sharing;
};

/// A call, and where it was written.
struct GraphNode {
  std::string name;
  std::string target; // "aten::linear"
  std::variant<
      c10::OperatorHandle,
      ScalarFunction,
      BeginGradMode,
      BeginAutocast,
      EndScope,
      Unread>
      call = EndScope{};
  bool is_random = false; // draws random numbers
  std::vector<Operand> args;
  std::vector<Result> results;
  std::vector<Slot> last_uses; // values that nobody asks for after it
  std::vector<OwnArg> own_args;
  std::vector<Slot> written; // values that may have changed after it
  std::string module;        // full name of the innermost module
  std::string source;        // "model.py:12, in forward: x = self.fc(x)"
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

/// One dimension of an input: what it was exported with, and the symbol that
/// stands for it where it may be another.
struct InputSize {
  int64_t value = 0;
  std::string symbol = {};
};

/// A symbol's range, both ends included.
struct SymbolRange {
  int64_t least = 0;
  std::optional<int64_t> most;
};

enum class InputKind : uint8_t { kParameter, kBuffer, kConstant, kUser };

/// What the graph takes. A user's input that is no tensor is a number.
struct GraphInput {
  InputKind kind = InputKind::kUser;
  Slot slot = 0;
  /// Of parameters, buffers and constants that of the model; else the graph's.
  std::string name;
  bool is_tensor = true;
  at::ScalarType dtype = at::kFloat;
  bool requires_grad = false;
  std::vector<InputSize> sizes;
};

/// A buffer, parameter or user's input that gets a value after the call.
struct Mutation {
  size_t input = 0; // in Graph::inputs
  Slot value = 0;
};

/// An argument of a call that takes a value as it is.
struct Use {
  size_t node = 0; // in Graph::nodes
  size_t arg = 0;
};

/// Sizes that a tensor had when the program was exported.
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
  std::vector<std::pair<std::string, SymbolRange>> symbols;
  size_t num_slots = 0;
  std::vector<std::vector<Use>> uses; // by slot, in order
  std::map<Slot, ValueMeta> metas;    // of tensors, as far as they are known
  bool casts = false;                 // it has scopes of autocast
};

} // namespace dtensor::detail
