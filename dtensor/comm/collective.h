// SPDX-License-Identifier: BSD-3-Clause
// Collective: one collective operation as a value, as one rank enters it.
//
// Group (comm/group.h) makes the value from the arguments of its functions, and
// a GroupBackend (comm/group_backend.h) executes it. Code that applies to every
// collective is a function of this value: comparison between ranks, timeouts,
// failure reports, observation, and decomposition into the collectives that a
// transport has.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <dtensor/api.h>
#include <dtensor/layout/cost.h>
#include <dtensor/layout/spec.h>

#include <cstdint>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace dtensor {

/// Tensors that a rank sends. A single tensor is moved in; an initializer list
/// would copy it.
struct SentTensors : c10::SmallVector<at::Tensor, 1> {
  SentTensors() = default;
  // Implicit, because a collective sends one tensor or a list.
  SentTensors(at::Tensor one) {
    push_back(std::move(one));
  }
  SentTensors(const std::vector<at::Tensor>& many)
      : SmallVector(many.begin(), many.end()) {}
};

struct DTENSOR_API Collective {
  CollectiveKind kind = CollectiveKind::kBarrier;
  /// True if the rank continues before the result is ready. The collective then
  /// owns an input that no other code refers to. Any other input may change as
  /// soon as submit() returns, except that of an all_to_all with `received`,
  /// which must not change until the result is ready.
  bool is_async = false;
  ReduceOp op = ReduceOp::kSum;
  /// Dimension that is gathered or scattered. Non-negative.
  int64_t dim = 0;
  /// Dimension that a shard_dim_alltoall shards while it gathers `dim`; -1 for
  /// any other collective.
  int64_t shard_dim = -1;
  /// Expected size along `dim` of the result of an asynchronous all_gather; -1:
  /// unknown.
  int64_t gathered_size = -1;
  /// Position in the group of the root, or of the peer of a send or recv.
  int64_t root = 0;
  /// Tag of a send or recv; messages match if their tags are equal.
  int64_t tag = 0;
  /// Tensors that this rank sends: one, or one per member (all_to_all, root of
  /// a scatter), or none (recv, barrier, other ranks of a scatter). For
  /// all_gather_strings, the bytes of the string.
  SentTensors inputs = {};
  /// Tensor with the shape, dtype and device of the result of a recv, or of a
  /// scatter on other ranks than the root. Its contents are not read.
  at::Tensor like = {};
  /// Sizes of all members' shards along `dim`; empty if the caller passed none.
  /// For an all_to_all with `received`, the number of elements of the
  /// one-dimensional input that this rank sends to each member.
  Sizes sizes = {};
  /// Numbers of elements that an all_to_all of one buffer receives from each
  /// member; empty for any other collective.
  Sizes received = {};
  /// Shapes of the tensors that an all_to_all or gather of one tensor per
  /// member receives; empty if the caller passed none.
  std::vector<Sizes> shapes = {};
  /// Destination of the result; undefined: a new tensor.
  at::Tensor out = {};

  /// Returns the first input.
  const at::Tensor& input() const {
    return inputs.front();
  }
  /// Returns true if no other code can read or write the first input, so that a
  /// backend may overwrite it. Memory that LibTorch did not allocate
  /// (from_blob) counts as shared, as its owner is unknown.
  bool owns_input() const;
  /// Returns the tensor that determines dtype and device: an input, else
  /// `like`, which may be undefined.
  const at::Tensor& example() const {
    return inputs.empty() ? like : inputs.front();
  }
  /// Returns "all_reduce", "all_gather", ...
  std::string_view name() const {
    return to_string(kind);
  }
  /// Returns the name of Group's function. The name differs from name() for
  /// shard_dim_alltoall.
  std::string_view function_name() const {
    return kind == CollectiveKind::kAllToAll && shard_dim >= 0
        ? "shard_dim_alltoall"
        : name();
  }
  /// Returns the bytes of all inputs.
  int64_t input_bytes() const {
    int64_t total = 0;
    for (const at::Tensor& tensor : inputs) {
      total += static_cast<int64_t>(tensor.nbytes());
    }
    return total;
  }
};

namespace detail {

/// Lists the fields of a Collective that are equal on all members, apart from
/// its tensors. Comparison, hashing and serialization use this list.
template <typename C>
auto common_fields(C& collective) {
  return std::tie(
      collective.kind,
      collective.op,
      collective.dim,
      collective.shard_dim,
      collective.gathered_size,
      collective.root,
      collective.sizes);
}

} // namespace detail
} // namespace dtensor
