// SPDX-License-Identifier: BSD-3-Clause
// State of a program, and the interpreter of its graph, which runs the calls
// one after the other over a table of values.
#pragma once

#include <dtensor/layout/mesh.h>
#include <dtensor/program/graph_impl.h>
#include <dtensor/program/operand_layouts_impl.h>
#include <dtensor/program/program.h>
#include <dtensor/weights/weight_file.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <memory>
#include <string>
#include <vector>

namespace dtensor {
namespace detail {

struct ProgramState {
  std::string path;
  c10::Device device = c10::kCPU;
  Graph graph;
  WeightFilePtr file;
  std::shared_ptr<torch::nn::Module> module; // on the meta device until read
  /// Value of each graph input; undefined for the user's inputs.
  std::vector<at::Tensor> inputs;
  bool is_read = false;
  DeviceMesh mesh; // undefined: the program runs on plain tensors
  GraphLayouts layouts;
};

/// Throws ValueError for inputs that do not match the export.
void check_inputs(const ProgramState& state, c10::ArrayRef<c10::IValue> inputs);

/// Creates modules with the graph's parameters and buffers, on the meta device,
/// and stores these tensors in `inputs`. Names that stand for one weight of the
/// file share one tensor.
std::shared_ptr<torch::nn::Module> make_modules(
    const Graph& graph,
    const WeightFile& file,
    std::vector<at::Tensor>& inputs);

class Interpreter {
 public:
  /// With `layouts`, the operands of each call are first redistributed to the
  /// layouts that the call needs.
  explicit Interpreter(
      const ProgramState& state,
      OperandLayouts* layouts = nullptr)
      : state_(state),
        layouts_(layouts),
        values_(state.graph.num_slots) {}
  /// Ends all scopes that remain open because a run threw.
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  std::vector<c10::IValue>& values() {
    return values_;
  }
  /// Calls the node on the values of its operands and stores its results. If
  /// the operator throws, the error names the source line of the call.
  void call(const GraphNode& node);
  c10::IValue value_of(const Operand& operand) const;
  /// Returns the value as a DTensor if the program runs on a mesh. A plain
  /// tensor must be equal on all ranks. For random numbers, the values of the
  /// mesh's first rank are used.
  c10::IValue placed(c10::IValue value, bool random = false) const;

 private:
  /// Calls the node on the operands in stack_.
  void carry_out(const GraphNode& node);
  void call_operator(const c10::OperatorHandle& op, const GraphNode& node);
  [[noreturn]] void refuse_call(const GraphNode& node, const std::string& why)
      const;
  void store(const Result& result, c10::IValue value, bool random);

  const ProgramState& state_;
  OperandLayouts* layouts_;
  std::vector<c10::IValue> values_;
  torch::jit::Stack stack_;
  std::vector<std::shared_ptr<void>> scopes_; // open scopes
};

} // namespace detail

detail::ProgramState& state_of(const Program& program);

} // namespace dtensor
