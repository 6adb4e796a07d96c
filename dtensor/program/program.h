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
  /// Device to run on. May differ from the device of the export.
  c10::Device device = c10::kCPU;
  /// Operators that the graph may call, besides LibTorch operators that only
  /// compute results from their arguments. Each item names all overloads of an
  /// operator ("torchvision::nms") or a namespace ("torchvision::*"). The file
  /// determines the arguments of these calls, so list operators only for files
  /// that you trust.
  std::vector<std::string> allowed_operators = {};
};

/// A graph of operators with its parameters and buffers. Copies of a Program
/// share all of these. A program belongs to the rank that loaded it.
class DTENSOR_API Program {
 public:
  explicit Program(std::shared_ptr<detail::ProgramState> state)
      : state_(std::move(state)) {}

  /// Calls the program with the tensor arguments of Python's forward(), in the
  /// order of its signature. Tensors in lists and dictionaries are passed one
  /// after the other. Other arguments keep their values from the export.
  ///
  /// If the program runs on a mesh, plain inputs must be full tensors, equal on
  /// all ranks. DTensor inputs may have any layout, and the result is a
  /// DTensor. The call is differentiable.
  ///
  /// Throws ValueError if the number, dtypes or shapes of the inputs do not
  /// match the export, or if the program does not return a single tensor.
  /// Errors of an operator name the line of Python source that called the
  /// operator.
  at::Tensor operator()(const std::vector<at::Tensor>& inputs);

  /// Calls the program and returns all results, in the order of Python's
  /// result. output_names() returns their names. `inputs` includes the numbers
  /// that the program takes (sizes of dynamic shapes).
  std::vector<c10::IValue> run(std::vector<c10::IValue> inputs);

  /// Returns the example inputs of the export (Python:
  /// ExportedProgram.example_inputs). Throws ValueError if the file has none.
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

  /// Returns a module tree with the names of the Python model, which holds its
  /// parameters and buffers. A module with the weight of a matrix product, an
  /// embedding or a layer norm is a torch::nn::Linear, Embedding or LayerNorm.
  /// The program does not call the forward() of these modules. Reads the
  /// weights from the file if this has not happened yet.
  torch::nn::Module& module();
  /// Returns the parameters that require gradients, for an optimizer.
  std::vector<at::Tensor> parameters();

 private:
  friend detail::ProgramState& state_of(const Program& program);
  std::shared_ptr<detail::ProgramState> state_;
};

/// Reads the graph of a file written by Python's torch.export.save. Weights are
/// read when they are needed; with parallelize_program(), each rank reads only
/// its local shards.
///
/// Throws ValueError if the file is missing, damaged, or of a newer format.
/// Throws NotImplementedError for an operator that cannot be run, and for an
/// operator that does more than compute and is not in `allowed_operators`. The
/// message names the line of Python source.
/// Python: torch.export.load.
DTENSOR_API Program
load_program(const std::string& path, const LoadProgramOptions& options = {});

/// Writes the inputs, outputs and parameters with their layouts, one per line.
DTENSOR_API std::ostream& operator<<(std::ostream& os, const Program& program);

} // namespace dtensor
