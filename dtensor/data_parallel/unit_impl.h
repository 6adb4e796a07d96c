// SPDX-License-Identifier: BSD-3-Clause
// Unit: parameters that are gathered and whose gradients are summed together.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <dtensor/comm/group.h>
#include <dtensor/data_parallel/fully_shard.h>
#include <dtensor/data_parallel/gathering_impl.h>
#include <dtensor/data_parallel/reduction_impl.h>
#include <dtensor/data_parallel/schedule_impl.h>
#include <dtensor/data_parallel/shard_parameter_impl.h>
#include <dtensor/ops/whole_source_impl.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dtensor::detail {

/// The groups of this rank that a unit communicates in.
struct UnitGroups {
  GroupPtr shard;
  GroupPtr repeat;   // HSDP; null otherwise
  GroupPtr regather; // see ReshardAfterForward; null otherwise
};

/// A parameter of a unit. The module owns it, and it owns the unit, which it
/// tells when it goes.
struct UnitParameter {
  c10::TensorImpl* tensor;
  std::string name;
  ParameterLayout layout;
  WholeLayout whole;
  uint64_t replaced = 0; // see ParameterState
};

class Unit : public std::enable_shared_from_this<Unit> {
 public:
  using Units = std::vector<std::weak_ptr<Unit>>;

  Unit(
      const torch::nn::Module* module,
      const std::string& name,
      UnitGroups groups,
      const FullyShardOptions& options);

  const torch::nn::Module* module() const {
    return module_;
  }
  std::string_view name() const {
    return name_;
  }
  /// Called once, before anything is gathered.
  void set_parameters(std::vector<UnitParameter> parameters);
  void put_inside(const UnitPtr& outer, const std::string& full_name);
  bool is_inside(const Unit& other) const;
  const UnitPtr& outer() const {
    return outer_;
  }
  const Units& inner() const {
    return inner_;
  }
  const std::shared_ptr<Schedule>& schedule() const {
    return schedule_;
  }

  at::Tensor take(size_t parameter);
  void give_back(size_t parameter, at::TensorList results);
  void forget(size_t parameter) {
    parameters_[parameter].tensor = nullptr;
  }
  ParameterState state(size_t parameter) const;
  /// A parameter was written or exchanged.
  void note_change() {
    ++changes_;
  }
  /// Calls of state(), for tests.
  int64_t states_read() const {
    return states_read_;
  }
  /// Throws for data that is not in the parameter's layout.
  void take_data(size_t parameter, const at::Tensor& data);
  /// While what it returns lives, the module computes: every operator gets the
  /// whole of a parameter.
  std::shared_ptr<void> open();
  /// The same for a module inside, whose end frees nothing.
  std::shared_ptr<void> open_inside();
  bool is_open() const {
    return open_ > 0;
  }
  const MixedPrecisionPolicy& mixed_precision() const {
    return mixed_precision_;
  }

  // For the schedule.
  void gather();
  /// The same for one parameter, without a look at each of the others.
  void gather_for(size_t parameter);
  void gather_ahead();
  /// For a node that has the whole of `parameter`.
  void refill(Gathering& gathering, size_t parameter);
  void release(bool after_forward);
  bool is_gathered() const;
  bool awaits_gradients() const {
    return awaits_gradients_;
  }
  bool reshards_after_forward() const;
  bool reshards_after_backward() const {
    return reshards_after_backward_;
  }
  const Units& forward_prefetch() const {
    return forward_prefetch_;
  }
  const Units& backward_prefetch() const {
    return backward_prefetch_;
  }

  /// For the graph: gradients of the wholes in, of the parameters out.
  /// `keeps_none`: nobody accumulates them.
  torch::autograd::variable_list reduce(
      const torch::autograd::variable_list& gradients,
      bool keeps_none);

  // For FSDPModule.
  void set_reshard_after_forward(ReshardAfterForward reshards) {
    reshard_after_forward_ = reshards;
  }
  void set_reshard_after_backward(bool reshards) {
    reshards_after_backward_ = reshards;
  }
  void set_forward_prefetch(Units units) {
    forward_prefetch_ = std::move(units);
  }
  void set_backward_prefetch(Units units) {
    backward_prefetch_ = std::move(units);
  }
  /// Null of a unit without parameters.
  Reduction* reduction() {
    return reduction_ ? &*reduction_ : nullptr;
  }

 private:
  void check_reduces(
      const torch::autograd::variable_list& gradients,
      bool keeps_none) const;
  std::vector<at::Tensor> parameters() const;
  at::Tensor parameter(size_t i) const;
  ParameterStates states() const;
  void note_dtypes();
  at::TensorOptions whole_options() const;
  at::Tensor my_parts() const;
  NodePtr make_node();
  void bring(Gathering& gathering);
  void check_unchanged(const Gathering& gathering, size_t parameter) const;

  const torch::nn::Module* module_; // for identity only
  std::string_view name_;
  UnitGroups groups_;
  MixedPrecisionPolicy mixed_precision_;
  bool offloads_; // parts stay on the CPU
  std::optional<ReshardAfterForward> reshard_after_forward_;
  bool reshards_after_backward_ = true;
  Units forward_prefetch_;
  Units backward_prefetch_;

  UnitPtr outer_;
  Units inner_;
  std::shared_ptr<Schedule> schedule_;
  std::vector<UnitParameter> parameters_;
  std::optional<FlatLayout> layout_;
  std::optional<Reduction> reduction_;

  std::shared_ptr<Gathering> current_;
  PendingPtr ahead_; // a gather that is under way
  ParameterStates ahead_of_;
  at::Tensor kept_;   // this rank's piece of the wholes, for `regather`
  int64_t users_ = 0; // operators that run on the wholes
  int64_t open_ = 0;  // calls of the module
  bool awaits_gradients_ = false;
  uint64_t changes_ = 0;
  uint64_t gathered_changes_ = 0; // when all states were last compared
  mutable int64_t states_read_ = 0;
};

/// The unit of a parameter, or null.
UnitPtr unit_of(const at::Tensor& parameter);

/// Those of a module's parameters, and those around them: a unit without
/// parameters of its own is one, too.
std::set<UnitPtr> units_in(const torch::nn::Module& module);

/// The unit that fully_shard made of a module, or null.
UnitPtr unit_of_module(const torch::nn::Module& module);

} // namespace dtensor::detail
