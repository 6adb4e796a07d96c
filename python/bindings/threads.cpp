// SPDX-License-Identifier: BSD-3-Clause
// Python functions on ranks that are threads of this process.
#include "parts.h"

#include "convert.h"
#include "released_backend.h"
#include "without_gil.h"

#include <dtensor/comm/ranks.h>
#include <dtensor/comm/world.h>

#include <stdexcept>

namespace dtensor::python {
namespace {

/// Calls fn(rank) on each rank. If a rank raises, all ranks end.
void run_python_ranks(int64_t ranks, const py::function& fn) {
  without_gil([&] {
    run_ranks(ranks, [&](int64_t rank) {
      wrap_backends(releasing_gil);
      const py::gil_scoped_acquire gil;
      try {
        fn(rank);
      } catch (const py::error_already_set& error) {
        // The caller's thread must not hold an exception of this thread.
        throw std::runtime_error(error.what());
      }
    });
  });
}

} // namespace

void bind_threads(py::module_& module) {
  module.def("run_ranks", &run_python_ranks);
}

} // namespace dtensor::python
