// SPDX-License-Identifier: BSD-3-Clause
// Modules that are tied after they were styled: head->weight = wte->weight. The
// style of the head rides on the weight that it had, so what meets the weight
// that it has now asks here.
#pragma once

#include <dtensor/ops/boundary_impl.h>

#include <ATen/core/Tensor.h>

#include <memory>

namespace torch::nn {
class Module;
}

namespace dtensor::detail {

class LayoutBoundary;

/// Notes, on this rank, that `boundary` is the style of `module`. A module that
/// no shared_ptr holds is not noted.
void note_styled(
    torch::nn::Module& module,
    BoundaryKind kind,
    std::shared_ptr<const LayoutBoundary> boundary);

/// The style of a Linear or an Embedding whose weight is `parameter` now and
/// was not when it was styled; null if there is none. Throws RuntimeError if
/// there are several that differ from each other or from `known` (may be null).
std::shared_ptr<const LayoutBoundary> style_of_tied(
    const at::Tensor& parameter,
    BoundaryKind kind,
    const LayoutBoundary* known);

} // namespace dtensor::detail
