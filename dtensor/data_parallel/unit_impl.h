// SPDX-License-Identifier: BSD-3-Clause
// Unit: parameters that are gathered together, and whose gradients are reduced
// together.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/comm/group.h>
#include <dtensor/data_parallel/fully_shard.h>
#include <dtensor/data_parallel/gathering_impl.h>
#include <dtensor/data_parallel/reduction_impl.h>
#include <dtensor/data_parallel/schedule_impl.h>
#include <dtensor/data_parallel/shard_parameter_impl.h>
#include <dtensor/ops/unsharded/unsharded_source_impl.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace dtensor::detail {

/// Groups of this rank in which a unit communicates.
struct UnitGroups {
  GroupPtr shard;
  GroupPtr repeat;        // HSDP; null otherwise
  GroupPtr reshard_group; // see ReshardAfterForward; null otherwise
};

/// Parameter of a unit. The module owns the parameter, which owns the unit. The
/// destruction of the parameter calls Unit::forget().
struct UnitParameter {
  c10::TensorImpl* tensor;
  std::string name;
  ParameterLayout layout;
  UnshardedLayout unsharded;
  bool keeps_dtype = false; // see MixedPrecisionPolicy::param_dtype_override_fn
  uint64_t replaced = 0;    // see ParameterState
};

class Unit : public std::enable_shared_from_this<Unit> {
 public:
  using Units = std::vector<std::weak_ptr<Unit>>;
  using variable_list = torch::autograd::variable_list;

  /// Settings of FSDPModule.
  struct Settings {
    std::optional<ReshardAfterForward> reshard_after_forward;
    bool reshards_after_backward = true;
    Units forward_prefetch = {};
    Units backward_prefetch = {};
  };
  Settings settings;

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
  /// Must be called once, before the first gather.
  void set_parameters(std::vector<UnitParameter> parameters);
  void nest_in(const UnitPtr& outer, const std::string& full_name);
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

  at::Tensor take_unsharded(size_t parameter);
  void give_back(size_t parameter, at::TensorList results);
  void forget(size_t parameter) {
    parameters_[parameter].tensor = nullptr;
  }
  ParameterState state(size_t parameter) const;
  /// Records that a parameter was written or replaced.
  void note_change() {
    ++changes_;
  }
  /// Number of calls of state(), for tests.
  int64_t state_read_count() const {
    return states_read_;
  }
  /// Throws if `data` is not in the parameter's layout.
  void check_replacement_data(size_t parameter, const at::Tensor& data);
  /// Begins the module's forward pass, which lasts while the result lives:
  /// every operator gets unsharded parameters.
  std::shared_ptr<void> open();
  /// Like open(), for a nested module. Frees nothing at the end.
  std::shared_ptr<void> open_nested();
  bool is_open() const {
    return open_ > 0;
  }
  /// Returns the dtype to which operators on a parameter cast other operands.
  std::optional<at::ScalarType> operand_dtype(size_t parameter) const;

  // Called by Schedule.
  void gather();
  /// Like gather(), but compares the state of one parameter only.
  void gather_for_parameter(size_t parameter);
  void gather_ahead();
  /// Gathers again for a node that has saved the unsharded `parameter`.
  void refill(Gathering& gathering, size_t parameter);
  void release(bool after_forward);
  bool is_gathered() const;
  bool awaits_gradients() const {
    return awaits_gradients_;
  }
  bool reshards_after_forward() const;

  /// Maps gradients of the unsharded parameters to gradients of the sharded
  /// parameters. `keeps_none`: true in autograd::grad, which accumulates none.
  variable_list reduce(const variable_list& gradients, bool keeps_none);

  // Called by FSDPModule.
  void set_keep_unsharded_storage(bool keeps);
  /// Adds gradients that earlier backward passes left unreduced to grad().
  void reduce_unreduced();
  /// Returns null for a unit without parameters.
  Reduction* reduction() {
    return reduction_ ? &*reduction_ : nullptr;
  }

 private:
  void check_reduces(const variable_list& gradients, bool keeps_none) const;
  variable_list reduced(const variable_list& gradients, bool releases);
  std::vector<at::Tensor> parameters() const;
  at::Tensor parameter(size_t i) const;
  ParameterStates states() const;
  void note_dtypes();
  void lay_out(const std::vector<at::ScalarType>& dtypes);
  at::ScalarType unsharded_dtype(size_t parameter) const;
  std::vector<at::ScalarType> unsharded_dtypes() const;
  c10::Device device() const;
  std::vector<ReducedParameter> reduced_parameters() const;
  at::ScalarType reduce_dtype() const;
  at::Tensor all_gather_input() const;
  NodePtr make_node();
  void bring(Gathering& gathering);
  void check_unchanged(const Gathering& gathering, size_t parameter) const;

  const torch::nn::Module* module_; // compared, never dereferenced
  std::string_view name_;
  UnitGroups groups_;
  MixedPrecisionPolicy mixed_precision_;
  bool offloads_; // local shards stay on the CPU
  bool keeps_unsharded_storage_ = false;

  UnitPtr outer_;
  Units inner_;
  std::shared_ptr<Schedule> schedule_;
  std::vector<UnitParameter> parameters_;
  std::optional<FlatLayout> layout_;
  std::optional<Reduction> reduction_;

  std::shared_ptr<Gathering> current_;
  PendingPtr ahead_; // all-gather in flight
  ParameterStates ahead_of_;
  at::Tensor kept_;   // this rank's shard for `reshard_group`
  int64_t users_ = 0; // running operators that use unsharded parameters
  int64_t open_ = 0;  // forward passes of the module in progress
  bool awaits_gradients_ = false;
  uint64_t changes_ = 0;
  uint64_t gathered_changes_ = 0; // when all states were last compared
  mutable int64_t states_read_ = 0;
};

/// Returns the unit of a parameter, or null.
UnitPtr unit_of(const at::Tensor& parameter);

/// Returns the units of a module's parameters, and the units around these (a
/// unit may have no parameters of its own).
std::set<UnitPtr> units_in(const torch::nn::Module& module);

/// Returns the unit that fully_shard made of a module, or null.
UnitPtr unit_of_module(const torch::nn::Module& module);

} // namespace dtensor::detail
