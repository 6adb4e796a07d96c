// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/path/noting_errors_impl.h>

#include <c10/util/Exception.h>
#include <dtensor/comm/backend/message_of_impl.h>
#include <dtensor/comm/group/owner_impl.h>
#include <dtensor/layout/mesh_state_impl.h>

#include <string>
#include <vector>

namespace dtensor::detail {
namespace {

// Returns the first line without a final period, as part of a sentence.
std::string clause_of(const c10::Error& error) {
  std::string text = first_line_of(error);
  if (text.ends_with('.')) {
    text.pop_back();
  }
  return text;
}

} // namespace

void note_current_error(const DeviceMesh& mesh, ErrorCounts before) {
  if (error_counts.noted != before.noted || error_counts.scopes > 0 ||
      mesh_groups(mesh) == nullptr || !is_owned_by_this_rank(mesh)) {
    return;
  }
  const bool is_common = error_counts.common != before.common;
  try {
    throw;
  } catch (const c10::Error& error) {
    note_error(
        {mesh.ranks(),
         clause_of(error),
         is_common ? last_common_ranks() : std::vector<int64_t>()});
  } catch (...) {
    // an exception of Python
  }
}

} // namespace dtensor::detail
