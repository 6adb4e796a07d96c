// SPDX-License-Identifier: BSD-3-Clause
// Scopes of a rank, as objects that Python's context managers enter and leave.
#include "parts.h"

#include "arguments.h"
#include "convert.h"
#include "without_gil.h"

#include <dtensor/comm/observer.h>
#include <dtensor/ops/explicit_redistribution.h>
#include <dtensor/ops/implicit_replication.h>
#include <dtensor/ops/on_missing_rule.h>
#include <dtensor/parallel/context_parallel.h>
#include <dtensor/parallel/loss_parallel.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <mutex>
#include <utility>

namespace dtensor::python {
namespace {

/// Holds a C++ scope between enter() and leave(). Enters nest.
template <class Scope>
class HeldScope {
 public:
  template <class... Options>
  void enter(const Options&... options) {
    scopes_.push_back(std::make_unique<Scope>(options...));
  }
  void leave() {
    scopes_.pop_back();
  }

 private:
  std::vector<std::unique_ptr<Scope>> scopes_;
};

/// Binds a class with a constructor and leave().
template <class Held>
py::class_<Held> bind_held(py::module_& module, const char* name) {
  return py::class_<Held>(module, name)
      .def(py::init<>())
      .def("leave", &Held::leave);
}

template <class Scope>
void bind_scope(py::module_& module, const char* name) {
  using Held = HeldScope<Scope>;
  bind_held<Held>(module, name).def("enter", [](Held& held) { held.enter(); });
}

void bind_explicit_redistribution(py::module_& module) {
  using Held = HeldScope<ExplicitRedistributionContext>;
  using Mode = ExplicitRedistributionOptions::Mode;
  bind_held<Held>(module, "ExplicitRedistribution")
      .def(
          "enter",
          [](Held& held, py::handle enable, py::handle strict, bool raises) {
            constexpr const char* name = "ExplicitRedistributionContext";
            held.enter(ExplicitRedistributionOptions{
                .enable = cast_argument<bool>(name, "enable", kBool, enable),
                .strict = cast_argument<bool>(name, "strict", kBool, strict),
                .mode = raises ? Mode::kRaise : Mode::kWarn});
          });
}

/// A scope whose costs can be read during and after it.
class HeldOnMissingRule {
 public:
  void enter() {
    scope_ = std::make_unique<OnMissingRule>(Replicate());
  }
  void leave() {
    costs_ = scope_->costs();
    scope_.reset();
  }
  std::map<std::string, MissingRuleCost> costs() const {
    return scope_ ? scope_->costs() : costs_;
  }

 private:
  std::unique_ptr<OnMissingRule> scope_;
  std::map<std::string, MissingRuleCost> costs_;
};

void bind_on_missing_rule(py::module_& module) {
  py::class_<MissingRuleCost>(module, "MissingRuleCost")
      .def_readonly("calls", &MissingRuleCost::calls)
      .def_readonly("collectives", &MissingRuleCost::collectives)
      .def_readonly("wire_bytes", &MissingRuleCost::wire_bytes)
      .def("__repr__", [](const MissingRuleCost& cost) {
        return "MissingRuleCost(calls=" + std::to_string(cost.calls) +
            ", collectives=" + std::to_string(cost.collectives) +
            ", wire_bytes=" + std::to_string(cost.wire_bytes) + ")";
      });
  using Held = HeldOnMissingRule;
  bind_held<Held>(module, "OnMissingRule")
      .def("enter", &Held::enter)
      .def("costs", &Held::costs);
}

using Tensors = std::vector<at::Tensor>;
using Dims = std::vector<int64_t>;

ContextParallelOptions context_parallel_options(
    py::handle buffers,
    py::handle seq_dims,
    py::handle no_restore_buffers,
    std::optional<bool> load_balance) {
  constexpr const char* name = "context_parallel";
  return {
      .buffers = cast_argument<Tensors>(name, "buffers", kTensors, buffers),
      .buffer_seq_dims =
          cast_argument<Dims>(name, "buffer_seq_dims", kIntegers, seq_dims),
      .no_restore_buffers = cast_argument<Tensors>(
          name, "no_restore_buffers", kTensors, no_restore_buffers),
      .load_balance = load_balance};
}

Tensors unshard(
    py::handle device_mesh,
    py::handle given_buffers,
    py::handle given_dims) {
  constexpr const char* name = "context_parallel_unshard";
  const auto buffers =
      cast_argument<Tensors>(name, "buffers", kTensors, given_buffers);
  const auto dims =
      cast_argument<Dims>(name, "seq_dims", kIntegers, given_dims);
  const DeviceMesh& mesh = to_mesh(device_mesh);
  return without_gil(
      [&] { return context_parallel_unshard(mesh, buffers, dims); });
}

void bind_context_parallel(py::module_& module) {
  using Held = HeldScope<ContextParallel>;
  bind_held<Held>(module, "ContextParallel")
      .def(
          "enter",
          [](Held& held,
             py::handle mesh,
             py::handle buffers,
             py::handle seq_dims,
             py::handle no_restore_buffers,
             std::optional<bool> load_balance) {
            const auto options = context_parallel_options(
                buffers, seq_dims, no_restore_buffers, load_balance);
            held.enter(to_mesh(mesh), options);
          });
  module.def("set_rotate_method", [](py::handle method) {
    constexpr Expected kMethod{
        "a str", "Pass \"allgather\", \"alltoall\" or \"ulysses\"."};
    set_rotate_method(cast_argument<std::string>(
        "set_rotate_method", "rotate_method", kMethod, method));
  });
  module.def("context_parallel_unshard", &unshard);
}

/// Records the collectives that this rank enters.
class CollectiveRecorder final : public CommObserver {
 public:
  void on_collective(const CollectiveEvent& event) override {
    const std::lock_guard lock(mutex_);
    const bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
    collectives_.emplace_back(to_string(event.kind), in_backward);
  }
  /// Returns the kinds of the collectives since the last call. The flag is true
  /// if a backward pass entered the collective.
  std::vector<std::pair<std::string, bool>> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(collectives_, {});
  }
  void enter() {
    guard_ = std::make_unique<CommObserverGuard>(*this);
  }
  void leave() {
    guard_.reset();
  }

 private:
  std::mutex mutex_;
  std::vector<std::pair<std::string, bool>> collectives_;
  std::unique_ptr<CommObserverGuard> guard_;
};

} // namespace

void bind_scopes(py::module_& module) {
  bind_scope<LossParallel>(module, "LossParallel");
  bind_scope<ImplicitReplication>(module, "ImplicitReplication");
  bind_explicit_redistribution(module);
  bind_on_missing_rule(module);
  bind_context_parallel(module);
  bind_held<CollectiveRecorder>(module, "CollectiveRecorder")
      .def("enter", &CollectiveRecorder::enter)
      .def("take", &CollectiveRecorder::take);
}

} // namespace dtensor::python
