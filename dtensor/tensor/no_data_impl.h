// SPDX-License-Identifier: BSD-3-Clause
// The error message of a DTensor's data_ptr() and storage().
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor::detail {

/// Sets the message eagerly. A parameter that takes over this tensor by
/// set_data() keeps its own TensorImpl and cannot set the message lazily.
void explain_no_data(const at::Tensor& dtensor);

} // namespace dtensor::detail
