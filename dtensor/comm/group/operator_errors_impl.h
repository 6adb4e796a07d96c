// SPDX-License-Identifier: BSD-3-Clause
// Errors of operators on this rank. An operator may fail on one rank only. If
// the rank catches the error, the other ranks go on with the operator's
// collectives. The groups of the mesh compare the numbers of errors, so that
// these collectives do not pair with later ones of the rank.
#pragma once

#include <dtensor/api.h>
#include <dtensor/comm/group_backend.h>

#include <cstdint>
#include <string>
#include <vector>

namespace dtensor::detail {

struct NotedError {
  /// Global ranks of the operator's mesh.
  std::vector<int64_t> mesh_ranks;
  std::string text;
  /// Global ranks that all throw the error, because it is one of their group's
  /// collective; empty for other errors. Groups within these ranks do not count
  /// the error.
  std::vector<int64_t> ranks_with_error = {};
};

/// Numbers of errors that this thread has seen.
struct ErrorCounts {
  int64_t noted = 0;  // by note_error()
  int64_t common = 0; // by note_common_error()
  int64_t scopes = 0; // of ErrorsDoNotCount
};
// Read in each call of an operator, hence in static TLS.
extern DTENSOR_INTERNAL_API constinit thread_local ErrorCounts error_counts
    [[gnu::tls_model("initial-exec")]];

/// Scope in which errors of operators do not count. For calls on tensors
/// without data, which do not communicate.
struct ErrorsDoNotCount {
  ErrorsDoNotCount() {
    ++error_counts.scopes;
  }
  ~ErrorsDoNotCount() {
    --error_counts.scopes;
  }
  ErrorsDoNotCount(const ErrorsDoNotCount&) = delete;
  ErrorsDoNotCount& operator=(const ErrorsDoNotCount&) = delete;
};

/// Records that all of these ranks are about to throw the error of one
/// collective. last_common_ranks() returns them.
void note_common_error(const std::vector<int64_t>& ranks);
const std::vector<int64_t>& last_common_ranks();

/// Notes an error of an operator. All groups of this rank within the mesh
/// compare the number of errors in their next collectives, including groups
/// made later.
DTENSOR_INTERNAL_API void note_error(NotedError error);

/// Lets a new group compare the errors of this rank.
void pass_errors_to(const GroupBackendPtr& backend);

} // namespace dtensor::detail
