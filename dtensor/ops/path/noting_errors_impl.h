// SPDX-License-Identifier: BSD-3-Clause
// Notes of errors that an operator throws after its decision. All ranks decide
// alike, but a local operator may fail on one rank only. If the rank catches
// the error, its next collective must not be taken for one of the operator's.
#pragma once

#include <dtensor/comm/group/operator_errors_impl.h>
#include <dtensor/layout/spec.h>

namespace dtensor::detail {

/// Notes the current exception for the groups within the mesh, unless the mesh
/// belongs to another rank.
void note_current_error(const DeviceMesh& mesh);

/// Runs `body`. Notes the error that it throws, unless an operator inside
/// `body` has noted it. `any` may be null: nothing is noted.
template <class Body>
void noting_errors(const SpecPtr& any, const Body& body) {
  const int64_t before = noted_errors();
  try {
    body();
  } catch (...) {
    if (any != nullptr && noted_errors() == before) {
      note_current_error(any->mesh());
    }
    throw;
  }
}

} // namespace dtensor::detail
