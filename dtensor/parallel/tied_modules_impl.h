// SPDX-License-Identifier: BSD-3-Clause
// Registry of styled modules, for modules that are tied after styling:
// head->weight = wte->weight. The head's boundary is attached to its former
// weight, so operators that use the new weight find the boundary here.
#pragma once

#include <dtensor/ops/path/boundary_impl.h>

#include <ATen/core/Tensor.h>

#include <memory>

namespace torch::nn {
class Module;
}

namespace dtensor::detail {

class LayoutBoundary;

/// Registers, on this rank, `boundary` as the style of `module`. Ignores a
/// module that is not held by a shared_ptr.
void note_styled(
    torch::nn::Module& module,
    BoundaryKind kind,
    std::shared_ptr<const LayoutBoundary> boundary);

/// Returns the style of a Linear or an Embedding that has `parameter` as its
/// weight now but had another one when styled; null if there is none. Throws
/// RuntimeError if such styles differ from each other or from `known` (may be
/// null).
std::shared_ptr<const LayoutBoundary> style_of_tied(
    const at::Tensor& parameter,
    BoundaryKind kind,
    const LayoutBoundary* known);

} // namespace dtensor::detail
