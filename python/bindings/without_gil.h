// SPDX-License-Identifier: BSD-3-Clause
// without_gil runs C++ code that computes or communicates. with_gil runs C++
// code that is too short to release the GIL.
#pragma once

#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>

#include <utility>

namespace dtensor::python {

/// Calls `f` with the GIL, and turns LibTorch's warnings into Python's. `f`
/// must not wait for another rank, which may need the GIL.
template <class F>
auto with_gil(F&& f) {
  torch::PyWarningHandler warnings;
  try {
    return std::forward<F>(f)();
  } catch (...) {
    warnings.set_in_exception();
    throw;
  }
}

/// Calls `f` without the GIL, and turns LibTorch's warnings into Python's.
/// Other Python ranks of this process can run meanwhile. `f` must not use
/// Python objects.
template <class F>
auto without_gil(F&& f) {
  return with_gil([&] {
    const pybind11::gil_scoped_release release;
    return std::forward<F>(f)();
  });
}

} // namespace dtensor::python
