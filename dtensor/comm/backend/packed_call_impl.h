// SPDX-License-Identifier: BSD-3-Clause
// Serialization of a rank's Call, for ranks that do not share memory.
#pragma once

#include <dtensor/comm/backend/call_impl.h>
#include <dtensor/comm/backend/rank_notes_impl.h>
#include <dtensor/comm/group_backend.h>

#include <string>
#include <vector>

namespace dtensor::detail {

/// A Call received from another rank. Its tensors have shapes and dtypes, no
/// data.
struct RemoteCall {
  Call call;
  RankNotes notes;
};

std::string pack(const Call& call);
/// Returns the call that global rank `rank` of a group of `members` ranks
/// packed. Throws RuntimeError if the bytes are not a call, or the call of a
/// larger group. `call.notes` is null if the rank has no notes.
/// Otherwise the caller must set `call.notes` to the address of `notes` in
/// the RemoteCall, once the RemoteCall is stored at its final address.
RemoteCall unpack(const std::string& packed, int64_t rank, int64_t members);

/// Throws ValueError unless these calls, packed by the members in order, form
/// one collective.
void check_packed_calls(
    const std::vector<std::string>& packed,
    const GroupMembers& members);

/// Returns a hash of the call, for comparison between ranks. The hash does not
/// cover the sizes sent to each member: see has_more_to_compare().
int64_t fingerprint(const Call& call);
bool has_more_to_compare(const Call& call);

} // namespace dtensor::detail
