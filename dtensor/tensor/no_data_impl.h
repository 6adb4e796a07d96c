// SPDX-License-Identifier: BSD-3-Clause
// What data_ptr() and storage() of a DTensor say.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor::detail {

/// Sets the message on a tensor that took a DTensor's data over by set_data():
/// it keeps its own TensorImpl, which does not know the message by itself.
void explain_no_data(const at::Tensor& dtensor);

} // namespace dtensor::detail
