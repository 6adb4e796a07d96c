// SPDX-License-Identifier: BSD-3-Clause
// Boundaries that are attached to a DTensor, at most one of each kind.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <dtensor/api.h>
#include <dtensor/ops/boundary/boundary_impl.h>
#include <dtensor/ops/traits.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>

namespace dtensor::detail {

constexpr size_t kBoundaryKinds = 3;

/// Boundaries of one parameter: tied weights may have one of each kind.
class Boundaries {
 public:
  const BoundaryPtr& get(BoundaryKind kind) const {
    return by_kind_[static_cast<size_t>(kind)];
  }
  /// Returns the boundary of `kind`, or any other boundary if there is none.
  const BoundaryPtr& get_any(BoundaryKind kind) const {
    if (const auto& exact = get(kind)) {
      return exact;
    }
    return *std::find_if(by_kind_.begin(), by_kind_.end() - 1, [](auto& b) {
      return b != nullptr;
    });
  }
  void set(BoundaryKind kind, BoundaryPtr boundary) {
    by_kind_[static_cast<size_t>(kind)] = std::move(boundary);
  }

 private:
  std::array<BoundaryPtr, kBoundaryKinds> by_kind_;
};

/// Returns the boundary of `kind` that is attached to `t`; null if there is
/// none.
const Boundary* boundary_of(const at::Tensor& t, BoundaryKind kind);

/// Calls Boundary::refresh for `t` if it is a leaf with boundaries.
void refresh_boundaries(const at::Tensor& t, BoundaryKind kind);

/// Returns the boundaries to attach to the result of an operator with these
/// traits on the DTensor `from`; null for most operators.
std::shared_ptr<const Boundaries> boundaries_to_carry(
    const OpTraits& traits,
    const at::Tensor& from);
inline std::shared_ptr<const Boundaries> carried_boundaries(
    const OpTraits& traits,
    const at::Tensor& from) {
  return traits.keeps_boundary || traits.boundary_follows_rows
      ? boundaries_to_carry(traits, from)
      : nullptr;
}

/// Adds "in `module`" to an error thrown inside the forward of a styled module.
/// Each error is extended once, by the innermost module. Errors that name a
/// function of this library are unchanged, since they already describe their
/// context.
DTENSOR_API void name_module(c10::Error& error, const std::string& module);

} // namespace dtensor::detail
