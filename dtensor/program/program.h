// SPDX-License-Identifier: BSD-3-Clause
// Programs from Python: what torch.export.save() wrote, run without a line of
// model code.
//
//   auto program = load_program("model.pt2");
//   const auto y = program({x});
//
//   parallelize_program(program, mesh, plan);  // program/parallelize_program.h
//   const auto z = program({x});               // a DTensor
//
// Python: torch.export.load(path).module().
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <dtensor/api.h>

#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace dtensor {

namespace detail {
struct ProgramState;
}

/// Options of load_program.
struct LoadProgramOptions {
  /// Where it runs, wherever it was exported.
  c10::Device device = c10::kCPU;
  /// Operators that the graph may call beside those of LibTorch that compute
  /// results from their arguments and do nothing else: "torchvision::nms" with
  /// all its overloads, or "torchvision::*" for a namespace. An operator that
  /// is named here does what it does with values from the file, so name one for
  /// files that you trust.
  std::vector<std::string> allowed_operators = {};
};

/// A graph of operators with the parameters and buffers that it uses. Copies
/// share both. It belongs to the rank that loaded it.
class DTENSOR_API Program {
 public:
  explicit Program(std::shared_ptr<detail::ProgramState> state)
      : state_(std::move(state)) {}

  /// Calls it with the tensors that Python's forward() took, in the order of
  /// its signature, those of lists and dictionaries one after the other; other
  /// arguments have the values that they were exported with. Of a program that
  /// runs on a mesh, plain inputs are taken to be whole and alike on all ranks,
  /// DTensors have any layout, and the result is a DTensor; gradients flow as
  /// through any operators.
  /// Throws ValueError for inputs of another number, dtype or shape than it was
  /// exported for, and if it does not return one tensor. The error of an
  /// operator says which line of the Python source called it.
  at::Tensor operator()(const std::vector<at::Tensor>& inputs);

  /// The same with all that it returns, in the order of Python's result, which
  /// output_names() tells; numbers that it takes (sizes of dynamic shapes)
  /// stand among the inputs.
  std::vector<c10::IValue> run(std::vector<c10::IValue> inputs);

  /// The inputs that it was exported with, if the file has them (Python:
  /// ExportedProgram.example_inputs). Throws ValueError if it has none.
  std::vector<at::Tensor> sample_inputs() const;
  /// Names of its inputs.
  std::vector<std::string> input_names() const;
  /// Where each result of run() stands in what Python's forward() returned:
  /// keys, fields and positions, joined by dots, as "logits" and
  /// "hidden_states.0". The name of a result that is all there is is empty.
  std::vector<std::string> output_names() const;
  /// How many operators one pass calls.
  size_t num_operators() const;

  /// Parameters and buffers by their Python names, in modules that have theirs:
  /// what holds the weight of a product, an embedding or a layer norm is a
  /// torch::nn::Linear, Embedding or LayerNorm. Their forward() is not what
  /// the program calls. The weights are read now if they have not been.
  torch::nn::Module& module();
  /// Those that a gradient is computed for, for an optimizer.
  std::vector<at::Tensor> parameters();

 private:
  friend detail::ProgramState& state_of(const Program& program);
  std::shared_ptr<detail::ProgramState> state_;
};

/// Reads the graph; weights are read when they are needed, of a parallel
/// program the parts alone that a rank has. Throws ValueError for a file that
/// is not there, damaged, or of a newer format; NotImplementedError for an
/// operator that cannot be run, or that does more than compute and is not in
/// `allowed_operators`, with its line in the Python source.
/// Python: torch.export.load.
DTENSOR_API Program
load_program(const std::string& path, const LoadProgramOptions& options = {});

/// Its inputs, outputs and parameters with their layouts, one a line.
DTENSOR_API std::ostream& operator<<(std::ostream& os, const Program& program);

} // namespace dtensor
