// SPDX-License-Identifier: BSD-3-Clause
// Loads and runs programs that Python's torch.export.save() wrote, without
// model code in C++.
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

/// Options for load_program().
struct LoadProgramOptions {
  /// Device to run on, independent of the device of the export.
  c10::Device device = c10::kCPU;
  /// Additional operators that the graph may call. Allowed by default are
  /// LibTorch operators that compute results from their arguments and do
  /// nothing else. Each item names all overloads of an operator
  /// ("torchvision::nms") or a namespace ("torchvision::*"). Such an operator
  /// is called with values from the file, so list it only for files that you
  /// trust.
  std::vector<std::string> allowed_operators = {};
};

/// A graph of operators with its parameters and buffers. Copies share both. A
/// program belongs to the rank that loaded it.
class DTENSOR_API Program {
 public:
  explicit Program(std::shared_ptr<detail::ProgramState> state)
      : state_(std::move(state)) {}

  /// Calls the program with the tensors of Python's forward(), in the order of
  /// its signature. Tensors in lists and dictionaries are passed one after the
  /// other. Arguments that are not tensors keep the values from the export.
  ///
  /// If the program runs on a mesh, plain inputs are taken to be full tensors,
  /// equal on all ranks. DTensor inputs may have any layout, and the result is
  /// a DTensor. Gradients flow as through any operators.
  ///
  /// Throws ValueError if the number, dtypes or shapes of the inputs do not
  /// match the export, and if the program does not return one tensor. The error
  /// of an operator names the line of Python source that called it.
  at::Tensor operator()(const std::vector<at::Tensor>& inputs);

  /// Calls the program and returns all results, in the order of Python's
  /// result. output_names() gives their names. Numbers that the program takes
  /// (sizes of dynamic shapes) are passed among the inputs.
  std::vector<c10::IValue> run(std::vector<c10::IValue> inputs);

  /// Returns the inputs of the export, if the file has them (Python:
  /// ExportedProgram.example_inputs). Throws ValueError if it has none.
  std::vector<at::Tensor> sample_inputs() const;
  /// Returns the names of the inputs.
  std::vector<std::string> input_names() const;
  /// Returns the place of each result of run() in the return value of Python's
  /// forward(): keys, fields and positions, joined by dots, such as "logits"
  /// and "hidden_states.0". If forward() returns a single value, its name is
  /// empty.
  std::vector<std::string> output_names() const;
  /// Returns the number of operators that one forward pass calls.
  size_t num_operators() const;

  /// Returns the parameters and buffers by their Python names, in modules with
  /// their Python names. A module that holds the weight of a product, an
  /// embedding or a layer norm is a torch::nn::Linear, Embedding or LayerNorm.
  /// The program does not call the forward() of these modules. Reads the
  /// weights if they have not been read.
  torch::nn::Module& module();
  /// Returns the parameters that require gradients, for an optimizer.
  std::vector<at::Tensor> parameters();

 private:
  friend detail::ProgramState& state_of(const Program& program);
  std::shared_ptr<detail::ProgramState> state_;
};

/// Reads the graph of a file written by Python's torch.export.save. Weights are
/// read when they are needed; a parallel program reads only the local shards of
/// a rank.
///
/// Throws ValueError if the file is missing, damaged, or of a newer format.
/// Throws NotImplementedError, with the line in the Python source, for an
/// operator that cannot be run, or that does more than compute and is not in
/// `allowed_operators`. Python: torch.export.load.
DTENSOR_API Program
load_program(const std::string& path, const LoadProgramOptions& options = {});

/// Writes the inputs, outputs and parameters with their layouts, one per line.
DTENSOR_API std::ostream& operator<<(std::ostream& os, const Program& program);

} // namespace dtensor
