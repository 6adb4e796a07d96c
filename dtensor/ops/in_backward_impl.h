// SPDX-License-Identifier: BSD-3-Clause
// Whether an operator was called by a gradient formula.
#pragma once

namespace dtensor::detail {

/// True while a node of the autograd graph runs on this thread.
bool in_backward();

} // namespace dtensor::detail
