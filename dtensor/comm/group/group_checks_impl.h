// SPDX-License-Identifier: BSD-3-Clause
// Argument checks of groups, and the notification of observers.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/comm/group.h>
#include <dtensor/comm/group_backend.h>

#include <string_view>
#include <utility>
#include <vector>

namespace dtensor::detail {

/// Notifies this rank's observers of a collective. `gathered` is the result of
/// an all_gather, if known.
void observe(
    const Group& group,
    const Collective& collective,
    const at::Tensor& gathered = {});

/// Throws ValueError for an undefined tensor, TypeError for a DTensor.
void check_defined(std::string_view where, const at::Tensor& tensor);

/// Throws TypeError if `op` has no meaning for `dtype`. Booleans follow NCCL:
/// sum is "or", product is "and", avg is an error.
void check_reducible(std::string_view where, at::ScalarType dtype, ReduceOp op);

/// Returns `dim` as a non-negative index. Throws IndexError if it is out of
/// range.
int64_t wrap_dim(std::string_view where, const at::Tensor& tensor, int64_t dim);

/// Throws ValueError if a size is negative, or if their sum could overflow.
void check_sizes(
    std::string_view where,
    std::string_view label,
    SizesRef sizes);
/// Throws ValueError unless `sizes` is empty or has one size per rank, none of
/// which is negative. check_shard_size() requires this rank's size to be that
/// of `input` along `dim`. check_total() requires the sum of the sizes to be
/// the size of `input` along `dim`.
void check_shard_size(
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
/// received from each rank. The shape at this rank's position must be that of
/// inputs[rank].
void check_shapes(
    std::string_view where,
    const Group& group,
    const std::vector<at::Tensor>& inputs,
    c10::ArrayRef<Sizes> shapes);

/// Throws ValueError unless the result of an all_gather has the expected size,
/// if one is given. `total` is its size along the gathered dimension.
void check_gathered_size(
    const Collective& collective,
    std::string_view label,
    int64_t total);

/// Throws RuntimeError unless each member sent a valid tensor size, and the sum
/// of the sizes is valid, too. Sizes of other ranks are checked before they are
/// used in an allocation.
void check_remote_sizes(
    std::string_view where,
    const GroupMembers& members,
    SizesRef sizes);
/// Throws RuntimeError unless `member` sent a valid tensor shape.
void check_remote_shape(
    std::string_view where,
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

} // namespace dtensor::detail
