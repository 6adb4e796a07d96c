// SPDX-License-Identifier: BSD-3-Clause
// What data_ptr() and storage() of a DTensor say.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor::detail {

/// Sets the message at once. A parameter that takes this tensor over by
/// set_data() keeps its own TensorImpl, which has no other way to know it.
void explain_no_data(const at::Tensor& dtensor);

} // namespace dtensor::detail
