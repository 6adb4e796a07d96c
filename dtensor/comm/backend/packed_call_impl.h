// SPDX-License-Identifier: BSD-3-Clause
// Serialization of a rank's Call, for ranks that do not share memory.
#pragma once

#include <dtensor/comm/backend/assumed_shapes_impl.h>
#include <dtensor/comm/backend/call_impl.h>

#include <string>

namespace dtensor::detail {

/// A Call received from another rank. Its tensors have shapes and dtypes, no
/// data.
struct RemoteCall {
  Call call;
  AssumedShapes assumed;
};

std::string pack(const Call& call);
/// Returns the call that global rank `rank` of a group of `members` ranks
/// packed.
/// Throws RuntimeError if the bytes are not a call, or the call of a larger
/// group. `call.assumed` is null if nothing was assumed. Else the caller must
/// point it at `assumed`, in the place where it stores the RemoteCall.
RemoteCall unpack(const std::string& packed, int64_t rank, int64_t members);

/// Returns a hash of the call, for comparison between ranks. It does not cover
/// the sizes sent to each member: see has_more_to_compare().
int64_t fingerprint(const Call& call);
bool has_more_to_compare(const Call& call);

} // namespace dtensor::detail
