// SPDX-License-Identifier: BSD-3-Clause
// Calls of a graph, one after the other, over a table of values.
#pragma once

#include <dtensor/program/program_state_impl.h>

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <memory>
#include <string>
#include <vector>

namespace dtensor::detail {

class Interpreter {
 public:
  /// With `layouts`, operands are brought to what each call wants before it.
  explicit Interpreter(
      const ProgramState& state,
      OperandLayouts* layouts = nullptr)
      : state_(state),
        layouts_(layouts),
        values_(state.graph.num_slots) {}
  /// Ends all scopes of a run that threw.
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  std::vector<c10::IValue>& values() {
    return values_;
  }
  /// Calls it on the values that it names, and gives its results theirs. The
  /// error of an operator says where it was called.
  void call(const GraphNode& node);
  c10::IValue value_of(const Operand& operand) const;
  /// Values of a program on a mesh are DTensors: what was plain is alike on all
  /// ranks, but for random numbers, of which those of its first rank count.
  c10::IValue placed(c10::IValue value, bool random = false) const;

 private:
  void carry_out(const c10::OperatorHandle& op, const GraphNode& node);
  void carry_out(ScalarFunction function, const GraphNode& node);
  void carry_out(const BeginGradMode& mode, const GraphNode& node);
  void carry_out(const BeginAutocast& mode, const GraphNode& node);
  void carry_out(const EndScope& end, const GraphNode& node);
  [[noreturn]] void carry_out(const Unread& call, const GraphNode& node);
  [[noreturn]] void refuse_call(const GraphNode& node, const std::string& why)
      const;
  void store(const Result& result, c10::IValue value, bool random);

  const ProgramState& state_;
  OperandLayouts* layouts_;
  std::vector<c10::IValue> values_;
  torch::jit::Stack stack_;
  std::vector<std::shared_ptr<void>> scopes_; // that have begun
};

} // namespace dtensor::detail
