// SPDX-License-Identifier: BSD-3-Clause
// What becomes of memory that ranks free.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

namespace dtensor::detail {

/// While one lives, the allocator keeps what threads free for what they
/// allocate next. glibc's default gives the large blocks of a thread back to
/// the system and takes them anew, a page fault for each 4 KB: a tenth of the
/// time of a small training step. Nothing is changed where the user has tuned
/// malloc by its own environment variables (MALLOC_TRIM_THRESHOLD_ and such).
///
/// The last one to go puts glibc's settings back, but for one thing that cannot
/// be: glibc adapts its thresholds to the blocks that a program frees until
/// somebody sets one, and there is no way to have it begin again. They are left
/// where adapting ends in a program that has freed large tensors.
class KeepFreedMemory {
 public:
  explicit KeepFreedMemory(bool wanted);
  ~KeepFreedMemory();
  KeepFreedMemory(const KeepFreedMemory&) = delete;
  KeepFreedMemory& operator=(const KeepFreedMemory&) = delete;

 private:
  bool wanted_;
};

/// An uninitialised tensor, row-major, for the result of a collective. While a
/// KeepFreedMemory lives, one that is too large for malloc to keep gets the
/// memory of one of its size that has gone, if there is any; at no time more is
/// kept than such results have taken at their most.
at::Tensor empty_result(
    at::IntArrayRef sizes,
    const at::TensorOptions& options);

/// A tensor of the CPU over `memory` of so many bytes, which may be resized: it
/// lets the memory go then.
at::Tensor tensor_in(
    at::DataPtr memory,
    size_t bytes,
    at::IntArrayRef sizes,
    at::ScalarType dtype);

} // namespace dtensor::detail
