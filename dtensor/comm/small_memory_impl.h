// SPDX-License-Identifier: BSD-3-Clause
// Memory for results of some bytes.
#pragma once

#include <ATen/core/Tensor.h>

namespace dtensor::detail {

/// The most bytes that empty_small() is quicker for.
constexpr size_t kQuickBytes = 1024;

/// What a tensor takes; the largest number there is, if it is more.
size_t bytes_of(at::IntArrayRef sizes, size_t item_bytes);

/// An uninitialised tensor of the CPU, row-major.
///
/// LibTorch takes memory by posix_memalign(), which glibc serves from no
/// thread's cache: it splits a block and gives the rest back, 0.1 us and more
/// of an all_reduce of 4 bytes that takes 0.3. For kQuickBytes at most this
/// takes somewhat more than is wanted by malloc(), and aligns it itself. A
/// program that has set an allocator of its own gets its memory from that.
at::Tensor empty_small(at::IntArrayRef sizes, at::ScalarType dtype);

} // namespace dtensor::detail
