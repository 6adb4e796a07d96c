// SPDX-License-Identifier: BSD-3-Clause
// Notes of errors that an operator throws after its decision. All ranks decide
// alike, but a local operator may fail on one rank only
// (comm/group/operator_errors_impl.h).
#pragma once

#include <dtensor/comm/group/operator_errors_impl.h>
#include <dtensor/layout/spec.h>

namespace dtensor::detail {

/// Notes the current exception, thrown since the counts were `before`. Does
/// nothing if an inner operator has noted it, in a scope of ErrorsDoNotCount,
/// on a mesh without groups or of another rank, and for exceptions that
/// LibTorch does not define: Python uses exceptions for control flow.
void note_current_error(const DeviceMesh& mesh, ErrorCounts before);

/// Runs `body`, and notes the error that it throws, unless `any` is null.
template <class Body>
void noting_errors(const SpecPtr& any, const Body& body) {
  const ErrorCounts before = error_counts;
  try {
    body();
  } catch (...) {
    if (any != nullptr) {
      note_current_error(any->mesh(), before);
    }
    throw;
  }
}

} // namespace dtensor::detail
