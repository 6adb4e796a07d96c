// SPDX-License-Identifier: BSD-3-Clause
#include "released_backend.h"

#include <dtensor/comm/backend_layer.h>
#include <pybind11/pybind11.h>

#include <utility>

namespace dtensor::python {
namespace {

/// Calls `f` without the GIL. This thread may or may not have the GIL.
template <class F>
auto released(F&& f) {
  if (Py_IsInitialized() == 0 || PyGILState_Check() == 0) {
    return std::forward<F>(f)();
  }
  const pybind11::gil_scoped_release release;
  return std::forward<F>(f)();
}

class ReleasedBackend final : public BackendLayer {
 public:
  using BackendLayer::BackendLayer;

  InFlight submit(Collective&& collective) override {
    return released([&] { return BackendLayer::submit(std::move(collective)); })
        .around([](const InFlight::Wait& wait) { return released(wait); });
  }
};

} // namespace

GroupBackendPtr releasing_gil(GroupBackendPtr backend) {
  return std::make_shared<ReleasedBackend>(std::move(backend));
}

} // namespace dtensor::python
