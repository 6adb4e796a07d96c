// SPDX-License-Identifier: BSD-3-Clause
// A rank's Call as a string, for ranks that do not see each other's memory.
#pragma once

#include <dtensor/comm/assumed_shapes_impl.h>
#include <dtensor/comm/call_impl.h>

#include <string>

namespace dtensor::detail {

/// What a rank told. Its tensors have shapes and dtypes, and no data.
struct ToldCall {
  Call call;
  AssumedShapes assumed;
};

std::string pack(const Call& call);
/// Returns what global rank `rank` told, of a group of `members`. Throws
/// RuntimeError for bytes that are no call, or the call of a larger group.
/// `call.assumed` is null where nothing was assumed, else to be pointed at
/// `assumed` by whoever keeps it.
ToldCall unpack(const std::string& packed, int64_t rank, int64_t members);

/// The same number on ranks whose calls fit, and another one where they do not;
/// but of what is sent to whom it knows nothing (has_more_to_compare).
int64_t fingerprint(const Call& call);
bool has_more_to_compare(const Call& call);

} // namespace dtensor::detail
