// SPDX-License-Identifier: BSD-3-Clause
// Errors of operators on this rank. An operator may fail on one rank only, and
// the rank may catch the error. Its groups must know: the next collective is
// none that other ranks wait for (comm/backend/rank_notes_impl.h).
#pragma once

#include <dtensor/api.h>
#include <dtensor/comm/group_backend.h>

#include <cstdint>
#include <string>
#include <vector>

namespace dtensor::detail {

/// Notes that an operator on the mesh of these global ranks failed on this
/// rank. All groups of this rank within the mesh get the note, also groups made
/// later.
DTENSOR_INTERNAL_API void note_error(
    const std::vector<int64_t>& ranks,
    const std::string& text);

/// Returns the number of errors that this rank has noted.
int64_t noted_errors();

/// Lets the backend of a new group of this rank get the notes.
void pass_errors_to(const GroupBackendPtr& backend);

} // namespace dtensor::detail
