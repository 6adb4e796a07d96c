// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <dtensor/layout/mesh.h>
#include <dtensor/program/graph_impl.h>
#include <dtensor/program/operand_layouts_impl.h>
#include <dtensor/program/program.h>
#include <dtensor/weights/weight_file.h>

#include <ATen/core/Tensor.h>

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
  std::shared_ptr<torch::nn::Module> module; // on meta until it is read
  /// The value of each of the graph's inputs; undefined for the user's.
  std::vector<at::Tensor> inputs;
  bool is_read = false;
  DeviceMesh mesh; // undefined: it runs on plain tensors
  GraphLayouts layouts;
};

/// Reads the weights, whole or this rank's parts, if they have not been.
void read_weights(ProgramState& state);

/// Throws ValueError for inputs that the graph was not exported for.
void check_inputs(const ProgramState& state, c10::ArrayRef<c10::IValue> inputs);

/// Modules with parameters and buffers of those names, on the meta device,
/// and puts them into `inputs`. Names that stand for one weight of the file
/// hold one tensor.
std::shared_ptr<torch::nn::Module> make_modules(
    const Graph& graph,
    const WeightFile& file,
    std::vector<at::Tensor>& inputs);

} // namespace detail

detail::ProgramState& state_of(const Program& program);

} // namespace dtensor
