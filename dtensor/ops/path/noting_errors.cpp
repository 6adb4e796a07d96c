// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/path/noting_errors_impl.h>

#include <dtensor/comm/backend/message_of_impl.h>
#include <dtensor/comm/group/owner_impl.h>

#include <algorithm>
#include <exception>
#include <string>

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

void note_current_error(const DeviceMesh& mesh) {
  if (!is_owned_by_this_rank(mesh)) {
    return; // the error says so
  }
  try {
    throw;
  } catch (const std::exception& error) {
    note_error(mesh.ranks(), clause(message_of(error)));
  } catch (...) {
    note_error(mesh.ranks(), "an exception of unknown type");
  }
}

} // namespace dtensor::detail
