// SPDX-License-Identifier: BSD-3-Clause
// Reduction: reduces the gradients of a unit's unsharded parameters over
// data-parallel ranks, and returns the shard of this rank.
//
// One reduce-scatter carries all gradients. Each rank's section of the buffer
// begins with a header of two numbers per parameter. The first counts the ranks
// that have a gradient: a parameter that no rank has used gets no gradient, as
// without data parallelism. The second counts the gradients that are Partial
// over tensor parallelism; these are reduced over it later.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/comm/group.h>
#include <dtensor/comm/pending.h>
#include <dtensor/data_parallel/shard_parameter_impl.h>
#include <torch/csrc/autograd/variable.h>

#include <optional>
#include <utility>
#include <vector>

namespace dtensor::detail {

/// This rank's gradient before the reduction over data-parallel ranks.
struct LocalGradient {
  /// Gradient; undefined if this rank has none.
  at::Tensor value;
  /// True if the gradient is Partial(sum) on the mesh dimension of tensor
  /// parallelism, along which the parameter is replicated. parallelize_module
  /// reduces such gradients at the end of the backward pass, for all parameters
  /// at once (tensor/gradient_impl.h).
  bool is_partial_sum_term = false;
};

/// Converts a gradient to layout `unsharded`, the layout in which operators
/// have the parameter (null: a plain tensor). Partial values are reduced in
/// `dtype` if it is wider than their own dtype. Throws TypeError for a plain
/// gradient of a DTensor, or a DTensor gradient of a plain tensor.
LocalGradient local_gradient(
    const at::Tensor& grad,
    const SpecPtr& unsharded,
    at::ScalarType dtype);

/// Adds the gradients of earlier passes and of this pass. A parameter's
/// gradients are either Partial in all passes of a model or in no pass.
LocalGradient sum_of(const LocalGradient& kept, const LocalGradient& local);

/// Returns the layout of the gradient of a parameter with layout `spec`, whose
/// last mesh dimension is that of tensor parallelism.
SpecPtr gradient_layout(const SpecPtr& spec, bool is_partial_sum_term);

/// Parameter that requires grad, and its index in the unit.
struct ReducedParameter {
  size_t number;
  const ParameterLayout* layout;
};

class Reduction {
 public:
  /// Settings of FSDPModule.
  struct Settings {
    bool requires_sync = true;
    bool requires_all_reduce = true;
    std::optional<double> divide_factor = std::nullopt;
  };
  Settings settings;

  /// Reduces on `device` over the ranks of `shard`, and of `repeat` unless
  /// null. Results are on `parts_device`.
  Reduction(
      GroupPtr shard,
      GroupPtr repeat,
      c10::DeviceType device,
      c10::DeviceType parts_device)
      : shard_(std::move(shard)),
        repeat_(std::move(repeat)),
        device_(device),
        parts_device_(parts_device) {}

  /// Reduces `gradients`, indexed by parameter of the unit, in `dtype`. Returns
  /// the reduced gradients and the collective in flight, or undefined tensors
  /// and null if the reduction is deferred. `parameters` is in ascending order,
  /// and includes every parameter of has_unreduced(number). Every rank must
  /// call this function.
  std::pair<torch::autograd::variable_list, PendingPtr> run(
      const std::vector<ReducedParameter>& parameters,
      const torch::autograd::variable_list& gradients,
      at::ScalarType dtype);

  /// True if gradients of several backward passes are accumulated.
  bool adds_up() const {
    return !settings.requires_sync || !unreduced_gradients_.empty() ||
        !settings.requires_all_reduce || shard_reduced_.defined();
  }

  /// True if the next call of run() reduces gradients of earlier backward
  /// passes.
  bool has_unreduced() const {
    return settings.requires_sync &&
        (!unreduced_gradients_.empty() ||
         (settings.requires_all_reduce && shard_reduced_.defined()));
  }
  /// True if earlier backward passes left a gradient of parameter `number`
  /// unreduced. The parameter may be frozen by now.
  bool has_unreduced(size_t number) const;

 private:
  void add_unreduced(
      const std::vector<ReducedParameter>& parameters,
      std::vector<LocalGradient>& locals);
  void add_shard_reduced(
      const at::Tensor& part,
      const std::vector<ReducedParameter>& parameters,
      const FlatLayout& layout) const;
  at::Tensor pack(
      const FlatLayout& layout,
      const std::vector<LocalGradient>& locals,
      at::ScalarType dtype) const;
  PendingPtr sum(
      at::Tensor packed,
      const std::vector<ReducedParameter>& parameters,
      const FlatLayout& layout);
  at::Tensor result(
      const ReducedParameter& parameter,
      LocalGradient local,
      const PendingPtr& sums,
      const FlatLayout& layout,
      size_t i) const;

  GroupPtr shard_;
  GroupPtr repeat_; // null if not HSDP
  c10::DeviceType device_;
  c10::DeviceType parts_device_;
  // Gradients from earlier backward passes, by number of the parameter.
  // Nullopt: the parameter was frozen in all of them.
  std::vector<std::optional<LocalGradient>> unreduced_gradients_;
  // This rank's section of a buffer reduced over `shard_` only, and the numbers
  // of its parameters.
  at::Tensor shard_reduced_;
  std::vector<size_t> shard_reduced_numbers_;
};

} // namespace dtensor::detail
