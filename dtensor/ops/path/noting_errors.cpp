// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/path/noting_errors_impl.h>

#include <c10/util/Exception.h>
#include <dtensor/comm/group/owner_impl.h>
#include <dtensor/layout/mesh_state_impl.h>

#include <algorithm>
#include <string>
#include <vector>

namespace dtensor::detail {
namespace {

// Returns the first line, without a final period: part of a sentence.
std::string clause(std::string text) {
  text.resize(std::min(text.find('\n'), text.size()));
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
         clause(error.what_without_backtrace()),
         is_common ? last_common_ranks() : std::vector<int64_t>()});
  } catch (...) {
    // an exception of Python
  }
}

} // namespace dtensor::detail
