// SPDX-License-Identifier: BSD-3-Clause
// Scopes of a rank, as objects that Python's context managers enter and leave.
#include "parts.h"

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

template <class Scope>
void bind_scope(py::module_& module, const char* name) {
  py::class_<HeldScope<Scope>>(module, name)
      .def(py::init<>())
      .def("enter", [](HeldScope<Scope>& held) { held.enter(); })
      .def("leave", &HeldScope<Scope>::leave);
}

void bind_explicit_redistribution(py::module_& module) {
  using Held = HeldScope<ExplicitRedistributionContext>;
  using Mode = ExplicitRedistributionOptions::Mode;
  py::class_<Held>(module, "ExplicitRedistribution")
      .def(py::init<>())
      .def(
          "enter",
          [](Held& held, bool enable, bool strict, bool raises) {
            held.enter(ExplicitRedistributionOptions{
                .enable = enable,
                .strict = strict,
                .mode = raises ? Mode::kRaise : Mode::kWarn});
          })
      .def("leave", &Held::leave);
}

/// A scope whose costs can be read in it and after it.
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
  py::class_<Held>(module, "OnMissingRule")
      .def(py::init<>())
      .def("enter", &Held::enter)
      .def("leave", &Held::leave)
      .def("costs", &Held::costs);
}

void bind_context_parallel(py::module_& module) {
  using Held = HeldScope<ContextParallel>;
  py::class_<Held>(module, "ContextParallel")
      .def(py::init<>())
      .def(
          "enter",
          [](Held& held,
             py::handle mesh,
             const std::vector<at::Tensor>& buffers,
             const std::vector<int64_t>& seq_dims,
             const std::vector<at::Tensor>& no_restore_buffers,
             std::optional<bool> load_balance) {
            held.enter(
                to_mesh(mesh),
                ContextParallelOptions{
                    .buffers = buffers,
                    .buffer_seq_dims = seq_dims,
                    .no_restore_buffers = no_restore_buffers,
                    .load_balance = load_balance});
          })
      .def("leave", &Held::leave);
  module.def("set_rotate_method", [](const std::string& method) {
    set_rotate_method(method);
  });
  module.def(
      "context_parallel_unshard",
      [](py::handle device_mesh,
         const std::vector<at::Tensor>& buffers,
         const std::vector<int64_t>& seq_dims) {
        const DeviceMesh& mesh = to_mesh(device_mesh);
        return without_gil(
            [&] { return context_parallel_unshard(mesh, buffers, seq_dims); });
      });
}

/// Records the collectives that this rank enters.
class CollectiveRecorder final : public CommObserver {
 public:
  void on_collective(const CollectiveEvent& event) override {
    const std::lock_guard lock(mutex_);
    const bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
    collectives_.emplace_back(to_string(event.kind), in_backward);
  }
  /// Returns the kinds of the collectives since the last call, and whether a
  /// backward pass entered them.
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
  py::class_<CollectiveRecorder>(module, "CollectiveRecorder")
      .def(py::init<>())
      .def("enter", &CollectiveRecorder::enter)
      .def("leave", &CollectiveRecorder::leave)
      .def("take", &CollectiveRecorder::take);
}

} // namespace dtensor::python
