// SPDX-License-Identifier: BSD-3-Clause
// Reduction: from gradients of a unit's whole parameters, which every rank has
// of its own data, to this rank's part of their average.
//
// They go by one reduce_scatter. In front of each rank's parts go two numbers
// a parameter: how many ranks have a gradient of it, so that one that nobody
// used has none afterwards, as in a plain program; and how many of these are
// terms of a sum over tensor parallelism, which is taken later.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/comm/group.h>
#include <dtensor/comm/pending.h>
#include <dtensor/data_parallel/local_gradient_impl.h>
#include <dtensor/data_parallel/shard_parameter_impl.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace dtensor::detail {

/// One that has a gradient, and its number in the unit.
struct ReducedParameter {
  size_t number;
  const ParameterLayout* layout;
};

class Reduction {
 public:
  /// Sums on `device`, over the ranks of `shard`, and of `repeat` if that is
  /// not null; what comes out goes to `parts_device`.
  Reduction(
      GroupPtr shard,
      GroupPtr repeat,
      c10::DeviceType device,
      c10::DeviceType parts_device)
      : shard_(std::move(shard)),
        repeat_(std::move(repeat)),
        device_(device),
        parts_device_(parts_device) {}

  /// Gradients of the unit's parameters, by number, summed in `dtype`, and what
  /// is under way of them; undefined and null while nothing is to be summed.
  /// All ranks call it.
  std::pair<torch::autograd::variable_list, PendingPtr> run(
      const std::vector<ReducedParameter>& parameters,
      const torch::autograd::variable_list& gradients,
      at::ScalarType dtype);

  /// Whether gradients of several passes are one sum.
  bool adds_up() const {
    return !requires_sync_ || !unsummed_.empty() || !requires_all_reduce_ ||
        unrepeated_.defined();
  }

  /// See FSDPModule.
  void set_requires_gradient_sync(bool requires_sync) {
    requires_sync_ = requires_sync;
  }
  void set_requires_all_reduce(bool requires_all_reduce) {
    requires_all_reduce_ = requires_all_reduce;
  }
  void set_gradient_divide_factor(double factor) {
    divide_factor_ = factor;
  }

 private:
  void add_unsummed(std::vector<LocalGradient>& locals);
  at::Tensor pack(
      const FlatLayout& layout,
      const std::vector<LocalGradient>& locals,
      at::ScalarType dtype) const;
  PendingPtr sum(at::Tensor packed, const FlatLayout& layout);
  at::Tensor result(
      const ReducedParameter& parameter,
      LocalGradient local,
      const PendingPtr& sums,
      const FlatLayout& layout,
      size_t i) const;

  GroupPtr shard_;
  GroupPtr repeat_; // or null
  c10::DeviceType device_;
  c10::DeviceType parts_device_;
  bool requires_sync_ = true;
  bool requires_all_reduce_ = true;
  std::optional<double> divide_factor_;
  std::vector<LocalGradient> unsummed_; // of earlier backward passes
  at::Tensor unrepeated_;               // summed over `shard_` alone
};

} // namespace dtensor::detail
