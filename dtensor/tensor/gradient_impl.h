// SPDX-License-Identifier: BSD-3-Clause
// What may be a gradient: of a DTensor a DTensor, of a local tensor a plain
// one, in a layout that gives every rank the shape that it has.
//
// Autograd checks shapes alone, and hooks and calls of backward() may hand it
// anything.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/spec.h>

#include <vector>

namespace dtensor::detail {

/// A gradient of a DTensor of `spec` as a DTensor: a plain one of one element
/// means the same on every rank. Throws TypeError for any other plain one.
at::Tensor gradient_as_dtensor(const at::Tensor& grad, const Spec& spec);

/// Throws TypeError for a gradient of a local tensor that is a DTensor.
void check_plain_gradient(const at::Tensor& grad);

/// From now on what accumulates at the leaf `dtensor` passes
/// gradient_as_dtensor().
void keep_gradient_distributed(const at::Tensor& dtensor);

/// The same for the gradient that `leaf` has now.
void make_gradient_distributed(const at::Tensor& leaf);

/// From now on what the node that made `result` (or wrote it in place) gives
/// back as a plain tensor, for an operand that is a DTensor, is one too, in the
/// layout of the operand. That is for formulas which make it of sizes alone, so
/// that it is whole on every rank. `operands` are the specs of the operands,
/// null for plain ones.
void make_gradients_distributed(
    const at::Tensor& result,
    std::vector<SpecPtr> operands);

/// grad_placements of a tensor of `spec`, normalized. Throws ValueError unless
/// every rank's part in them has the shape of its part in `spec`.
Placements checked_grad_placements(
    const Spec& spec,
    PlacementsRef grad_placements,
    const char* where);

} // namespace dtensor::detail
