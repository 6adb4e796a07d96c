// SPDX-License-Identifier: BSD-3-Clause
// How groups check their arguments and tell observers what a call sends.
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

/// Tells this rank's observers.
void observe(
    const Group& group,
    CollectiveKind kind,
    int64_t payload,
    double wire);
/// The same of a collective that goes in a ring with `buffer` bytes.
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
/// Sent is all of `input` but the part along `shard_dim` that the rank keeps.
void observe_shard_dim_alltoall(
    const Group& group,
    const at::Tensor& input,
    int64_t shard_dim);

/// Throws ValueError for an undefined tensor, TypeError for a DTensor.
void check_defined(std::string_view where, const at::Tensor& tensor);

/// Throws TypeError if `op` has no meaning for `dtype`. Booleans follow NCCL:
/// sum is "or", product is "and", avg is an error.
void check_reducible(std::string_view where, at::ScalarType dtype, ReduceOp op);

/// `dim` counted from the front. Throws IndexError if there is no such one.
int64_t wrap_dim(std::string_view where, const at::Tensor& tensor, int64_t dim);

/// Throws ValueError unless `sizes`, where it is given, has one for each rank:
/// that of `input` along `dim` for this one, and together that of all of
/// `input` in check_total().
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
/// The same for the shapes of what comes from each rank, this one's own being
/// that of what it keeps.
void check_shapes(
    std::string_view where,
    const Group& group,
    const std::vector<at::Tensor>& inputs,
    c10::ArrayRef<Sizes> shapes);

/// Throws ValueError: the parts have size `total` together, not `wanted`.
[[noreturn]] void throw_wrong_total(
    std::string_view where,
    std::string_view label,
    int64_t dim,
    int64_t total,
    int64_t wanted);

/// Throws RuntimeError unless each member said a size that a tensor can have,
/// and their sum is one. Sizes of other ranks are checked before anything of
/// them is allocated.
void check_told_sizes(const GroupMembers& members, SizesRef sizes);
/// The same for the shape that `member` said.
void check_told_shape(
    const GroupMembers& members,
    size_t member,
    SizesRef shape);

/// Throws ValueError unless the message that came from member `from` has the
/// dtype of `like`, and fits its shape.
void check_received(
    const GroupMembers& members,
    int64_t from,
    const at::Tensor& like,
    const at::Tensor& message,
    bool fits_shape);

/// (gather_dim, shard_dim) of a shard_dim_alltoall, counted from the front.
std::pair<int64_t, int64_t>
two_dims(const at::Tensor& input, int64_t gather_dim, int64_t shard_dim);

/// `result`, copied to `out` if that is defined.
PendingPtr ready_at(const at::Tensor& result, const at::Tensor& out);

/// A call of a backend. While it lives, autograd is set aside for a backend
/// that needs it so; it gives the tensors as the backend needs them. LibTorch's
/// profilers see it as `name`, a literal.
class Handover {
 public:
  Handover(const GroupBackend& backend, std::string_view name)
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
