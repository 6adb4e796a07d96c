// SPDX-License-Identifier: BSD-3-Clause
// Call: what a rank says about the collective that it enters. Ranks tell each
// other their calls and compare them; those that are threads read each other's
// tensors through them.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/comm/observer.h>
#include <dtensor/layout/placement.h>
#include <dtensor/layout/shard_math.h>

#include <optional>
#include <string>
#include <vector>

namespace dtensor::detail {

class AssumedShapes;

/// Lives at least until the ranks have compared it; in threads from arrival to
/// departure, or in the AsyncMeeting, where tensors are contiguous and carry no
/// gradient.
struct Call {
  /// Nothing: texts.
  std::optional<CollectiveKind> kind = {};
  /// The tensors this rank gives: one, or one per member (all_to_all, the
  /// root of scatter).
  std::vector<at::Tensor> inputs = {};
  /// The shape and dtype a rank expects that gives nothing (scatter).
  at::Tensor like = {};
  ReduceOp op = ReduceOp::kSum;
  int64_t dim = 0;
  /// The dimension that a shard_dim_alltoall cuts, which gathers `dim`; -1
  /// for one of a tensor for each member.
  int64_t shard_dim = -1;
  /// The parts along `dim` of all members, and the shapes of what comes from
  /// them in an all_to_all; empty: the caller knew none.
  Sizes sizes = {};
  std::vector<Sizes> shapes = {};
  /// The size along `dim` that an asynchronous all_gather is to end with.
  int64_t gathered_size = -1;
  /// A position in the group.
  int64_t root = 0;
  /// Where the tensors lie, if members are to have theirs on one type of
  /// device.
  std::optional<c10::DeviceType> device = {};
  std::string text = {};
  /// What the call is for: operator, layouts, module. Empty: not said.
  std::string purpose = {};
  /// What this rank took for granted; null: nothing.
  const AssumedShapes* assumed = nullptr;
  /// Where the result goes. That of an all_reduce is written by all members,
  /// each its part; others may be undefined and then have memory of their own.
  at::Tensor output = {};

  const at::Tensor& input() const {
    return inputs.front();
  }
  std::string_view name() const {
    return kind ? to_string(*kind) : std::string_view("all_gather_texts");
  }
};

/// The calls of all members, in rank order.
using Calls = std::vector<const Call*>;

/// An all_to_all of one buffer, as one tensor for each member.
Call parted_call(const at::Tensor& input, SizesRef sent, SizesRef received);

/// "f32[4, 2]".
std::string describe(const at::Tensor& tensor);

/// Throws ValueError if these calls, one per member, are not one collective.
/// The text is the same on every rank.
void check_agreement(
    const Calls& calls,
    const std::vector<int64_t>& ranks,
    const std::string& label);

/// "rank 0 calls X; ranks 1, 2 call Y" for the verb "call": one text per
/// member; ranks that say the same stand together, in order of the first.
std::string who_says(
    const std::vector<std::string>& texts,
    const std::vector<int64_t>& ranks,
    const std::string& verb);

/// "rank 1" or "ranks 0, 2".
std::string rank_list(const std::vector<int64_t>& ranks);

} // namespace dtensor::detail
