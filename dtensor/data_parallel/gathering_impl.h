// SPDX-License-Identifier: BSD-3-Clause
// Gathering: the whole parameters of a unit, as operators and graphs have them.
//
// Their memory comes and goes, while the tensors stay: a graph that saved one
// finds it filled again when it needs it. A tensor that may be read by someone
// else than an operator or a graph (a view of a whole parameter) keeps the
// memory: then it goes when nobody has the tensors any more.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/data_parallel/flat_layout_impl.h>
#include <dtensor/layout/spec.h>
#include <dtensor/ops/boundary_impl.h>
#include <dtensor/ops/whole_source_impl.h>
#include <dtensor/torch_nodes_impl.h>

#include <functional>
#include <memory>
#include <vector>

namespace dtensor::detail {

/// What the parameters of a unit were when they were gathered.
using ParameterStates = std::vector<ParameterState>;

/// What operators are to get of a parameter.
struct WholeLayout {
  SpecPtr spec; // null: a plain tensor
  std::shared_ptr<const Boundaries> boundaries;
};

class Gathering {
 public:
  /// Without memory yet.
  Gathering(
      const FlatLayout& layout,
      const at::TensorOptions& options,
      ParameterStates of);

  /// What the unit's parameters were.
  const ParameterStates& of() const {
    return of_;
  }
  /// Parameter number i for an operator, which reads it while there is memory;
  /// without history.
  at::Tensor bare(size_t i, const WholeLayout& layout) const;
  /// The same with one, if it is to be recorded. `make_node` makes the node
  /// that takes the gradients of all of them, by number, once for all that is
  /// recorded in one graph.
  at::Tensor whole(
      size_t i,
      const WholeLayout& layout,
      const std::function<NodePtr()>& make_node);
  /// Whether a parameter requires grad.
  bool learns() const {
    return learns_;
  }

  bool is_here() const {
    return is_here_;
  }
  /// Brings memory, and the parameters from what was gathered into it.
  void fill(const FlatLayout& layout, const at::Tensor& gathered);
  /// The same from all of its elements.
  void fill(const at::Tensor& elements);
  /// All of its elements.
  const at::Tensor& elements() const {
    return elements_;
  }
  /// Frees the memory, unless it is somebody's. Returns whether it did.
  bool release();

  /// Notes that `t` may be read at any time, if it shares the memory.
  void note_sharer(const at::Tensor& t);
  /// Notes that anyone may read the wholes.
  void keep_memory() {
    is_shared_ = true;
  }

 private:
  void bring_memory();
  void record(
      const at::Tensor& whole,
      size_t i,
      const std::function<NodePtr()>& make_node);

  at::Tensor elements_;
  std::vector<at::Tensor> parts_; // `elements_`, parameter by parameter
  ParameterStates of_;
  bool learns_;
  WeakNode node_{NodePtr()}; // it has the parameters, and so the unit
  int64_t bytes_ = 0;
  bool is_here_ = true;
  bool is_shared_ = false;
};

} // namespace dtensor::detail
