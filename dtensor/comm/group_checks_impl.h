// SPDX-License-Identifier: BSD-3-Clause
// Argument checks of groups, and the reports of sent bytes to observers.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/MaybeOwned.h>
#include <dtensor/comm/group.h>
#include <dtensor/comm/group_backend.h>
#include <dtensor/comm/observer.h>
#include <dtensor/comm/plain_tensors_impl.h>
#include <dtensor/comm/recorded_impl.h>

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace dtensor::detail {

inline int64_t bytes(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.nbytes());
}
inline int64_t bytes(const std::vector<at::Tensor>& tensors) {
  int64_t total = 0;
  for (const at::Tensor& tensor : tensors) {
    total += bytes(tensor);
  }
  return total;
}

/// Notifies this rank's observers.
void observe(
    const Group& group,
    CollectiveKind kind,
    int64_t payload,
    double wire);
/// Notifies observers of a ring collective over a buffer of `buffer` bytes.
inline void observe_ring(
    const Group& group,
    CollectiveKind kind,
    int64_t payload,
    int64_t buffer) {
  if (C10_UNLIKELY(comm_observed())) {
    observe(
        group,
        kind,
        payload,
        wire_bytes(kind, group.size(), static_cast<double>(buffer)));
  }
}
/// Notifies observers: the rank sends all of `input` except its own shard along
/// `shard_dim`.
void observe_shard_dim_alltoall(
    const Group& group,
    const at::Tensor& input,
    int64_t shard_dim);

/// Throws ValueError for an undefined tensor, TypeError for a DTensor.
void check_defined(std::string_view where, const at::Tensor& tensor);

/// Throws TypeError if `op` has no meaning for `dtype`. Booleans follow NCCL:
/// sum is "or", product is "and", avg is an error.
void check_reducible(std::string_view where, at::ScalarType dtype, ReduceOp op);

/// Returns `dim` as a non-negative index. Throws IndexError if it is out of
/// range.
int64_t wrap_dim(std::string_view where, const at::Tensor& tensor, int64_t dim);

/// Throws ValueError unless `sizes` is empty or has one size per rank.
/// check_part() requires this rank's size to be that of `input` along `dim`;
/// check_total() requires the sizes to add up to it.
void check_part(
    std::string_view where,
    const Group& group,
    const at::Tensor& input,
    int64_t dim,
    SizesRef sizes);
void check_total(
    std::string_view where,
    const Group& group,
    const at::Tensor& input,
    int64_t dim,
    SizesRef sizes);
/// Throws ValueError unless `shapes` is empty or has the shape of the tensor
/// received from each rank; this rank's own must be that of inputs[rank].
void check_shapes(
    std::string_view where,
    const Group& group,
    const std::vector<at::Tensor>& inputs,
    c10::ArrayRef<Sizes> shapes);

/// Throws ValueError: the shards' total size is `total`, not `wanted`.
[[noreturn]] void throw_wrong_total(
    std::string_view where,
    std::string_view label,
    int64_t dim,
    int64_t total,
    int64_t wanted);

/// Throws RuntimeError unless each member sent a valid tensor size, and their
/// sum is one. Sizes of other ranks are checked before they are used in an
/// allocation.
void check_remote_sizes(const GroupMembers& members, SizesRef sizes);
/// Throws RuntimeError unless `member` sent a valid tensor shape.
void check_remote_shape(
    const GroupMembers& members,
    size_t member,
    SizesRef shape);

/// Throws ValueError unless the message received from member `from` has the
/// dtype of `like` and fits its shape.
void check_received(
    const GroupMembers& members,
    int64_t from,
    const at::Tensor& like,
    const at::Tensor& message,
    bool fits_shape);

/// Returns (gather_dim, shard_dim) of a shard_dim_alltoall, both non-negative.
std::pair<int64_t, int64_t>
two_dims(const at::Tensor& input, int64_t gather_dim, int64_t shard_dim);

/// Returns `result` as a completed Pending, copied to `out` if that is defined.
PendingPtr ready_at(const at::Tensor& result, const at::Tensor& out);

/// A call of a backend. Excludes autograd while it lives, and converts tensors
/// to plain contiguous ones, if the backend needs that. LibTorch's profilers
/// show the call as `name`, a literal.
class PreparedInput {
 public:
  PreparedInput(const GroupBackend& backend, std::string_view name)
      : recorded_(name) {
    if (C10_UNLIKELY(backend.needs().plain)) {
      plain_.emplace();
    }
  }
  c10::MaybeOwned<at::Tensor> operator()(const at::Tensor& tensor) const {
    using Handed = c10::MaybeOwned<at::Tensor>;
    return C10_UNLIKELY(plain_.has_value()) ? Handed::owned(dense(tensor))
                                            : Handed::borrowed(tensor);
  }
  const std::vector<at::Tensor>& operator()(
      const std::vector<at::Tensor>& tensors) {
    if (!plain_) {
      return tensors;
    }
    for (const at::Tensor& tensor : tensors) {
      handed_.push_back(dense(tensor));
    }
    return handed_;
  }

 private:
  static at::Tensor dense(const at::Tensor& tensor) {
    return tensor.is_conj() || tensor.is_neg()
        ? tensor.resolve_conj().resolve_neg().contiguous()
        : tensor.contiguous();
  }

  Recorded recorded_;
  std::optional<PlainTensors> plain_;
  std::vector<at::Tensor> handed_;
};

} // namespace dtensor::detail
