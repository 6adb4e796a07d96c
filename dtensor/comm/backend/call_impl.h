// SPDX-License-Identifier: BSD-3-Clause
// Call: a collective as the other members see it. Ranks exchange their calls
// and compare them. Ranks that are threads also read each other's tensors
// through these calls.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/comm/collective.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace dtensor::detail {

class RankNotes;

/// A collective and its cause. With threads, a Call lives from arrival to
/// departure, or in an AsyncMeeting, where tensors are contiguous and carry no
/// gradient. In all other cases a Call lives until the ranks have compared it.
struct Call : Collective {
  Call() = default;
  explicit Call(Collective collective) : Collective(std::move(collective)) {}

  /// Device type of the tensors, if all members must use the same one.
  std::optional<c10::DeviceType> device = {};
  /// Purpose of the call: operator, layouts, module. Empty: unknown.
  std::string purpose = {};
  /// Notes of this rank; null: none.
  const RankNotes* notes = nullptr;
};

/// Calls of all members, in rank order.
using Calls = std::vector<const Call*>;

/// Returns the collective with one tensor per member in place of the buffer of
/// an all_to_all with counts, so that members may compare the sizes of these
/// tensors.
Call call_with_tensors(const Collective& collective);

/// Returns dtype and shape, "f32[4, 2]".
std::string describe_tensor(const at::Tensor& tensor);

/// Throws ValueError unless these calls, one per member, form one collective.
/// The text is equal on every rank.
void check_agreement(
    const Calls& calls,
    const std::vector<int64_t>& ranks,
    const std::string& label);

/// Texts of ranks: each text once, with the ranks that have it.
using RankTexts = std::vector<std::pair<std::string, std::vector<int64_t>>>;
void add_text(RankTexts& texts, const std::string& text, int64_t rank);

/// Returns "rank 0 calls X; ranks 1, 2 call Y" for the verb "call". `texts` has
/// one entry per member. Ranks with equal texts are listed together, in order
/// of the first.
std::string group_ranks_by_text(
    const std::vector<std::string>& texts,
    const std::vector<int64_t>& ranks,
    const std::string& verb);

/// Returns "rank 1" or "ranks 0, 2".
std::string rank_list(const std::vector<int64_t>& ranks);

} // namespace dtensor::detail
