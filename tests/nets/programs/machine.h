// SPDX-License-Identifier: BSD-3-Clause
// Machine: runs the steps of a program, on plain tensors or on DTensors.
//
// Beside the operators it knows these steps:
//   grad no_grad inference     the mode from here on
//   call                       a module, or one sibling of it, on a variable
//   refill                     new values into a buffer, through data_ptr()
//   redistribute               another layout; a clone of plain tensors
//   backward                   of the sum of squares, once or keeping the graph
//   gradient                   of it with respect to a leaf, as a variable
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
  /// Without a mesh the program runs on plain tensors.
  Machine(const Program& program, std::optional<DeviceMesh> mesh);

  /// Throws what the operator throws. `out` then does not exist.
  void run(const Step& step);
  /// Whether all variables that it reads exist, plain tensors among them mean
  /// to the module that is called what they mean without ranks, no out comes
  /// to lie over what is read, and a refill fits.
  bool can_run(const Step& step) const;

  std::map<int, at::Tensor>& variables() {
    return variables_;
  }
  /// What gradients arrive at: leaves among the inputs, and parameters.
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
  std::map<int, at::Tensor> memory_; // behind buffers and plain tensors
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  Mode mode_ = Mode::kGrad;
};

} // namespace dtensor::programs
