// SPDX-License-Identifier: BSD-3-Clause
// Arguments of the functions of the public API. An argument of a wrong type
// throws a TypeError with the text of this library; pybind11 would list C++
// types.
#pragma once

#include <pybind11/pybind11.h>

namespace dtensor::python {

namespace py = pybind11;

/// Description of the expected argument, and of the argument to pass.
struct Expected {
  const char* what;
  const char* advice;
};
inline constexpr Expected kTensor{"a torch.Tensor", "Pass one tensor."};
inline constexpr Expected kTensors{
    "a sequence of torch.Tensor",
    "Pass a list of tensors."};
inline constexpr Expected kDtype{
    "a torch.dtype",
    "Pass one such as torch.float32, or None."};
inline constexpr Expected kBool{"a bool", "Pass True or False."};
inline constexpr Expected kNumber{
    "a number",
    "Pass an int, a float, a bool or a complex."};
inline constexpr Expected kIntegers{
    "integers",
    "Pass ints of 64 bits, or one list or tuple of them."};

/// Throws the TypeError: "[function] expected ... as name, got ...".
[[noreturn]] void refuse_argument(
    const char* function,
    const char* name,
    const Expected& expected,
    py::handle given);

/// Returns an argument as a C++ value. Throws TypeError if it cannot be
/// converted.
template <class T>
T cast_argument(
    const char* function,
    const char* name,
    const Expected& expected,
    py::handle given) {
  try {
    return given.cast<T>();
  } catch (const py::cast_error&) {
    refuse_argument(function, name, expected, given);
  }
}

} // namespace dtensor::python
