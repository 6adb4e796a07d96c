// SPDX-License-Identifier: BSD-3-Clause
// Reuse of memory that ranks free.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

namespace dtensor::detail {

/// While an instance lives, the allocator keeps memory that threads free for
/// their next allocations. By default glibc returns a thread's large blocks to
/// the system and requests them again. The page faults, one per 4 KB, take a
/// tenth of the time of a small training step. If the user has tuned malloc by
/// its environment variables (MALLOC_TRIM_THRESHOLD_ and others), instances
/// change nothing.
///
/// The last instance to end restores glibc's settings, with one exception.
/// glibc adapts its thresholds to the blocks that a program frees until a
/// threshold is set, and this adaptation cannot be restarted. The thresholds
/// are left where adaptation ends in a program that has freed large tensors.
class KeepFreedMemory {
 public:
  explicit KeepFreedMemory(bool wanted);
  ~KeepFreedMemory();
  KeepFreedMemory(const KeepFreedMemory&) = delete;
  KeepFreedMemory& operator=(const KeepFreedMemory&) = delete;

 private:
  bool wanted_;
};

/// Returns an uninitialized, contiguous tensor for the result of a collective.
/// While a KeepFreedMemory lives, results too large for malloc's heaps reuse
/// the memory of a freed result of the same size, if there is any. Used and
/// kept memory together never exceed the maximum that such results have used at
/// the same time.
at::Tensor empty_result(
    at::IntArrayRef sizes,
    const at::TensorOptions& options);

/// Returns a CPU tensor over `memory` of `bytes` bytes. Resizing the tensor is
/// allowed and releases the memory.
at::Tensor tensor_in(
    at::DataPtr memory,
    size_t bytes,
    at::IntArrayRef sizes,
    at::ScalarType dtype);

/// Largest size for which empty_small() is faster than at::empty().
constexpr size_t kQuickBytes = 1024;

/// Returns the bytes of a tensor; the maximum of size_t if the number
/// overflows.
size_t bytes_of(at::IntArrayRef sizes, size_t item_bytes);

/// Returns an uninitialized, contiguous CPU tensor.
///
/// LibTorch allocates with posix_memalign(), which glibc never serves from a
/// thread's cache: glibc splits a block and frees the rest. This costs at least
/// 0.1 us of an all_reduce of 4 bytes that takes 0.3 us. For up to kQuickBytes,
/// this function instead allocates slightly more with malloc() and aligns the
/// memory itself. If the program has set its own CPU allocator, this function
/// uses that allocator.
at::Tensor empty_small(at::IntArrayRef sizes, at::ScalarType dtype);

} // namespace dtensor::detail
