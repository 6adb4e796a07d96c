// SPDX-License-Identifier: BSD-3-Clause
#include "released_backend.h"

#include <pybind11/pybind11.h>

#include <utility>

namespace dtensor::python {
namespace {

/// Calls `f` without the GIL, whether this thread has it or not.
template <class F>
auto released(F&& f) {
  if (Py_IsInitialized() == 0 || PyGILState_Check() == 0) {
    return std::forward<F>(f)();
  }
  const pybind11::gil_scoped_release release;
  return std::forward<F>(f)();
}

class ReleasedBackend final : public GroupBackend {
 public:
  explicit ReleasedBackend(GroupBackendPtr inner)
      : GroupBackend(inner->members(), inner->needs()),
        inner_(std::move(inner)) {}

  InFlight submit(Collective&& collective) override {
    return released([&] { return inner_->submit(std::move(collective)); })
        .around([](const InFlight::Wait& wait) { return released(wait); });
  }
  bool progresses_in_background(c10::DeviceType device) const override {
    return inner_->progresses_in_background(device);
  }
  void assume(const Spec& spec) override {
    inner_->assume(spec);
  }
  void abandon(const std::string& why) override {
    inner_->abandon(why);
  }

 private:
  GroupBackendPtr inner_;
};

} // namespace

GroupBackendPtr releasing_gil(GroupBackendPtr backend) {
  return std::make_shared<ReleasedBackend>(std::move(backend));
}

} // namespace dtensor::python
