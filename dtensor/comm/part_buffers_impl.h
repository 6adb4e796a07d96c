// SPDX-License-Identifier: BSD-3-Clause
// The parts of all members of a group in one buffer, one after the other, as
// backends send and get them.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/shard_math.h>

#include <vector>

namespace dtensor::detail {

/// `sizes` but for that along `dim`.
Sizes resized(SizesRef sizes, int64_t dim, int64_t size);

/// Shapes that are `like` but along `dim`, where they have these sizes.
std::vector<Sizes> shapes_along(SizesRef like, int64_t dim, SizesRef sizes);

/// Of the parts that torch.chunk makes.
Sizes chunk_sizes(int64_t size, int64_t parts);

/// Whether nobody but the caller can read or write this tensor. Memory that
/// LibTorch did not allocate (from_blob) has an owner that it does not know.
bool is_given_away(const at::Tensor& tensor);

/// Elements of tensors of these shapes.
Sizes counts_of(c10::ArrayRef<Sizes> shapes);
std::vector<Sizes> shapes_of(const std::vector<at::Tensor>& tensors);

/// Views of `input` that have these sizes along `dim`, one after the other.
std::vector<at::Tensor>
split(const at::Tensor& input, int64_t dim, SizesRef sizes);

/// The parts' elements, one part after the other.
at::Tensor in_one_buffer(const std::vector<at::Tensor>& parts);

/// The same back again: views of the buffer.
std::vector<at::Tensor> out_of_buffer(
    const at::Tensor& buffer,
    c10::ArrayRef<Sizes> shapes);

/// Whether parts along `dim` lie one after the other in memory.
bool is_outermost(SizesRef sizes, int64_t dim);

/// Parts along `dim` of a tensor of these sizes, as one buffer.
at::Tensor
cut_into_buffer(const at::Tensor& input, int64_t dim, SizesRef sizes);

/// The tensor whose parts of these shapes along `dim` lie in `buffer`.
at::Tensor joined_from_buffer(
    const at::Tensor& buffer,
    c10::ArrayRef<Sizes> shapes,
    int64_t dim);

} // namespace dtensor::detail
