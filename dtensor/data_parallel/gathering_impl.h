// SPDX-License-Identifier: BSD-3-Clause
// Gathering: the unsharded parameters of a unit, as operators and the autograd
// graph use them.
//
// The tensors persist, while their memory is allocated and freed repeatedly:
// when a graph needs a saved tensor, the tensor's memory is filled again. A
// tensor that other code may read at any time (such as a view of an unsharded
// parameter) keeps the memory until the last such tensor is destroyed.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/data_parallel/flat_layout_impl.h>
#include <dtensor/layout/spec.h>
#include <dtensor/ops/boundary/boundaries_impl.h>
#include <dtensor/ops/unsharded/unsharded_source_impl.h>
#include <dtensor/torch_nodes_impl.h>

#include <functional>
#include <memory>
#include <vector>

namespace dtensor::detail {

/// States of a unit's parameters at the time of the gather.
using ParameterStates = std::vector<ParameterState>;

/// Layout of an unsharded parameter.
struct UnshardedLayout {
  SpecPtr spec; // null: a plain tensor
  std::shared_ptr<const Boundaries> boundaries;
};

class Gathering {
 public:
  /// Makes tensors of these dtypes, one per parameter, on `device`. Allocates
  /// no memory yet.
  Gathering(
      const FlatLayout& layout,
      c10::ArrayRef<at::ScalarType> dtypes,
      c10::Device device,
      ParameterStates of);

  /// States of the parameters whose values this gathering holds.
  const ParameterStates& of() const {
    return of_;
  }
  /// Returns unsharded parameter i without autograd history. Operators may read
  /// it only while the memory is allocated.
  at::Tensor bare(size_t i, const UnshardedLayout& layout) const;
  /// Like bare(), with autograd history if the parameter requires grad.
  /// `make_node` makes the node that receives the gradients of all parameters,
  /// by index. `make_node` is called once per graph.
  at::Tensor unsharded(
      size_t i,
      const UnshardedLayout& layout,
      const std::function<NodePtr()>& make_node);
  /// Returns true if any parameter requires grad.
  bool learns() const {
    return any_requires_grad_;
  }

  bool is_here() const {
    return is_here_;
  }
  /// Allocates memory and copies the parameters from the all-gather's output.
  void fill(const FlatLayout& layout, const at::Tensor& gathered);
  /// Allocates memory and copies the parameters from a flat tensor of all
  /// unsharded elements.
  void fill(const at::Tensor& elements);
  /// Flat tensor of all unsharded elements.
  const at::Tensor& elements() const {
    return elements_;
  }
  /// Frees the memory unless it is shared. Returns false if it is shared.
  bool release();
  /// true: release() only marks the memory as free, and fill() reuses it.
  void set_keeps_memory(bool keeps);
  /// Returns true if kept memory has no other user, and the tensors have these
  /// dtypes. restart() may then reuse the memory for other values of the
  /// parameters.
  bool can_restart(c10::ArrayRef<at::ScalarType> dtypes) const;
  void restart(ParameterStates of);

  /// Keeps the memory if `t` shares it, as `t` may be read at any time.
  void keep_memory_if_shared(const at::Tensor& t);
  /// Keeps the memory, as other code may read the unsharded parameters.
  void keep_memory() {
    is_shared_ = true;
  }

 private:
  void allocate_memory();
  void free_memory();
  void record(
      const at::Tensor& unsharded,
      size_t i,
      const std::function<NodePtr()>& make_node);

  at::Tensor elements_;
  std::vector<at::Tensor> parts_; // views of `elements_`, one per parameter
  ParameterStates of_;
  bool any_requires_grad_;
  WeakNode node_{NodePtr()}; // weak: it owns the parameters, hence the unit
  int64_t bytes_ = 0;
  bool is_here_ = true;
  bool is_shared_ = false;
  bool has_memory_ = true;
  bool keeps_memory_ = false;
};

} // namespace dtensor::detail
