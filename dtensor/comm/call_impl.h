// SPDX-License-Identifier: BSD-3-Clause
// Call: the description of a collective that a rank enters. Ranks exchange
// their calls and compare them. Ranks that are threads also read each other's
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

/// Arguments of one rank's collective. With threads it lives from arrival to
/// departure, or in an AsyncMeeting, where tensors are contiguous and carry no
/// gradient. In all other cases it lives until the ranks have compared it.
struct Call {
  /// nullopt: all_gather_strings.
  std::optional<CollectiveKind> kind = {};
  /// Tensors that this rank sends: one, or one per member (all_to_all, the root
  /// of scatter).
  std::vector<at::Tensor> inputs = {};
  /// Shape and dtype expected by a rank that sends nothing (scatter).
  at::Tensor like = {};
  ReduceOp op = ReduceOp::kSum;
  int64_t dim = 0;
  /// Dimension that a shard_dim_alltoall shards while it gathers `dim`; -1 for
  /// an all_to_all of one tensor per member.
  int64_t shard_dim = -1;
  /// Sizes of all members' shards along `dim`, and for an all_to_all the shapes
  /// of the received tensors; empty if the caller had none.
  Sizes sizes = {};
  std::vector<Sizes> shapes = {};
  /// Size along `dim` of the result of an asynchronous all_gather.
  int64_t gathered_size = -1;
  /// Root's position in the group.
  int64_t root = 0;
  /// Device type of the tensors, if all members must use the same one.
  std::optional<c10::DeviceType> device = {};
  std::string text = {};
  /// Purpose of the call: operator, layouts, module. Empty: unknown.
  std::string purpose = {};
  /// Shapes that this rank assumed; null: none.
  const AssumedShapes* assumed = nullptr;
  /// Destination of the result. All members write to that of an all_reduce,
  /// each a part of it. For others it may be undefined; the result is then a
  /// new tensor.
  at::Tensor output = {};

  const at::Tensor& input() const {
    return inputs.front();
  }
  std::string_view name() const {
    return kind ? to_string(*kind) : std::string_view("all_gather_strings");
  }
};

/// Calls of all members, in rank order.
using Calls = std::vector<const Call*>;

/// Describes an all_to_all of one buffer as a call with one tensor per member.
Call all_to_all_call(const at::Tensor& input, SizesRef sent, SizesRef received);

/// Returns dtype and shape, "f32[4, 2]".
std::string describe(const at::Tensor& tensor);

/// Throws ValueError unless these calls, one per member, form one collective.
/// The text is equal on every rank.
void check_agreement(
    const Calls& calls,
    const std::vector<int64_t>& ranks,
    const std::string& label);

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
