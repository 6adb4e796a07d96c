// SPDX-License-Identifier: BSD-3-Clause
// Machine: runs the steps of a program, on plain tensors or on DTensors.
//
// Steps besides operators:
//   grad no_grad inference     the mode for the following steps
//   call                       a module, or one of its siblings, on a variable
//   refill                     new values into a buffer, through data_ptr()
//   redistribute               another layout; a clone of plain tensors
//   backward                   of the sum of squares, once or keeping the graph
//   gradient                   of the sum for one leaf, as a variable
//   zero_grad sgd              of all leaves
#pragma once

#include <dtensor/layout/mesh.h>
#include <torch/nn/module.h>

#include <map>
#include <memory>
#include <optional>

#include "program.h"

namespace dtensor::programs {

class Machine {
 public:
  /// Without a mesh, the program runs on plain tensors.
  Machine(const Program& program, std::optional<DeviceMesh> mesh);

  /// Runs a step. If the operator throws, `out` does not exist.
  void run(const Step& step);
  /// True if the step can run with the same meaning with and without ranks. All
  /// variables that the step reads must exist. A module must not be called on a
  /// plain tensor that it would treat as a shard. No out may overlap an input
  /// and be resized over it. A refill must fit.
  bool can_run(const Step& step) const;

  std::map<int, at::Tensor>& variables() {
    return variables_;
  }
  /// Returns the leaves that receive gradients: inputs and parameters.
  std::vector<at::Tensor> leaves() const;
  void clear_gradients();
  const at::Tensor& buffer(int input) const {
    return variables_.at(input);
  }

 private:
  enum class Mode : uint8_t { kGrad, kNoGrad, kInference };

  at::Tensor make_input(const Input& input, uint64_t seed);
  void add_module(ModuleKind kind, uint64_t seed);
  at::Tensor compute(const Step& step);
  at::Tensor squares(const at::Tensor& x) const;
  void refill(int input, int64_t number);
  void descend();

  Program program_;
  std::optional<DeviceMesh> mesh_;
  std::map<int, at::Tensor> variables_;
  std::map<int, at::Tensor> memory_; // of buffers and plain tensors
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  Mode mode_ = Mode::kGrad;
};

} // namespace dtensor::programs
