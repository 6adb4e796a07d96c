// SPDX-License-Identifier: BSD-3-Clause
// Tests for operator calls made by gradient formulas.
#pragma once

namespace dtensor::detail {

/// Returns true while a node of the autograd graph runs on this thread.
bool in_backward();

/// Returns true in nodes that carry a gradient through a write to a view. Such
/// nodes find the view's elements of the gradient by strides and offset in the
/// memory of a full tensor, so they get a replicated gradient.
bool in_view_backward();

} // namespace dtensor::detail
