// SPDX-License-Identifier: BSD-3-Clause
// Shards of all members of a group in one contiguous buffer, in rank order.
// Backends send and receive shards in this form.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/shard_math.h>

#include <string>
#include <vector>

namespace dtensor::detail {

/// Returns `sizes` with the size along `dim` replaced.
Sizes resized(SizesRef sizes, int64_t dim, int64_t size);

/// Returns true if no size is negative, and the product of the positive sizes
/// is at most `most`.
bool is_valid_shape(SizesRef sizes, int64_t most);

/// Returns one shape per entry of `sizes`: `like` with this entry as its size
/// along `dim`.
std::vector<Sizes> shapes_along(SizesRef like, int64_t dim, SizesRef sizes);

/// Returns the sizes of the chunks that torch.chunk makes.
Sizes chunk_sizes(int64_t size, int64_t parts);

/// Returns the shard of [0, size) that belongs to `member`: by `sizes`, or the
/// torch.chunk if `sizes` is empty.
Interval
shard_range_of(int64_t size, int64_t parts, SizesRef sizes, int64_t member);

/// Returns true if all sizes are equal.
bool all_equal(SizesRef sizes);

/// Returns true if only the caller can read or write this tensor. Memory that
/// LibTorch did not allocate (from_blob) counts as shared, because its owner is
/// unknown.
bool is_sole_owner(const at::Tensor& tensor);

/// Returns the number of elements of each shape.
Sizes counts_of(c10::ArrayRef<Sizes> shapes);
std::vector<Sizes> shapes_of(c10::ArrayRef<at::Tensor> tensors);

/// Splits `input` into views with these sizes along `dim`.
std::vector<at::Tensor>
split(const at::Tensor& input, int64_t dim, SizesRef sizes);

/// Copies the elements of all shards into one buffer, in order.
at::Tensor in_one_buffer(c10::ArrayRef<at::Tensor> parts);

/// Returns views of the buffer with these shapes; the inverse of
/// in_one_buffer().
std::vector<at::Tensor> out_of_buffer(
    const at::Tensor& buffer,
    c10::ArrayRef<Sizes> shapes);

/// Returns true if shards along `dim` are contiguous in memory, in order.
bool is_outermost(SizesRef sizes, int64_t dim);

/// Splits a tensor along `dim` into shards of these sizes, in one buffer.
at::Tensor
split_into_buffer(const at::Tensor& input, int64_t dim, SizesRef sizes);

/// Joins the shards in `buffer`, of these shapes, into one tensor along `dim`.
at::Tensor concat_from_buffer(
    const at::Tensor& buffer,
    c10::ArrayRef<Sizes> shapes,
    int64_t dim);

/// Converts a string to a tensor of its bytes, and tensors to strings.
at::Tensor string_tensor(const std::string& text);
std::vector<std::string> strings_of(const std::vector<at::Tensor>& tensors);

} // namespace dtensor::detail
