// SPDX-License-Identifier: BSD-3-Clause
// Whether an operator was called by a gradient formula.
#pragma once

namespace dtensor::detail {

/// True while a node of the autograd graph runs on this thread.
bool in_backward();

/// True in the nodes that bring a gradient through a write to a view: they find
/// the part of the gradient that belongs to the view by strides and offset in
/// the memory of a whole tensor, so they get a replicated one.
bool in_view_backward();

} // namespace dtensor::detail
