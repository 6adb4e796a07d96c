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
  std::shared_ptr<torch::nn::Module> module; // on the meta device until read
  /// Value of each graph input; undefined for the user's inputs.
  std::vector<at::Tensor> inputs;
  bool is_read = false;
  DeviceMesh mesh; // undefined: the program runs on plain tensors
  GraphLayouts layouts;
};

/// Reads the weights (full tensors, or this rank's shards) unless they have
/// already been read.
void read_weights(ProgramState& state);

/// Throws ValueError for inputs that do not match the export.
void check_inputs(const ProgramState& state, c10::ArrayRef<c10::IValue> inputs);

/// Creates modules with the graph's parameters and buffers, on the meta device,
/// and stores these tensors in `inputs`. Names that stand for one weight of the
/// file share one tensor.
std::shared_ptr<torch::nn::Module> make_modules(
    const Graph& graph,
    const WeightFile& file,
    std::vector<at::Tensor>& inputs);

} // namespace detail

detail::ProgramState& state_of(const Program& program);

} // namespace dtensor
