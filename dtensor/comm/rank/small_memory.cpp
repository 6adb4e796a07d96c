// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/rank/small_memory_impl.h>

#include <ATen/EmptyTensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>
#include <c10/util/safe_numerics.h>
#include <dtensor/comm/rank/rank_memory_impl.h>
#include <dtensor/error.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>

namespace dtensor::detail {
namespace {

void free_small(void* block) {
  c10::profiledCPUMemoryReporter().Delete(block);
  std::free(block);
}

at::DataPtr small_memory(size_t bytes) {
  constexpr size_t kAlignment = c10::gAlignment;
  void* const block = std::malloc(bytes + kAlignment);
  DTENSOR_CHECK(
      block != nullptr,
      "[collective] cannot allocate {} bytes for a result.",
      bytes);
  c10::profiledCPUMemoryReporter().New(block, bytes);
  const auto offset = reinterpret_cast<uintptr_t>(block) % kAlignment;
  auto* const data = static_cast<std::byte*>(block) + (kAlignment - offset);
  return {data, block, free_small, at::kCPU};
}

} // namespace

size_t bytes_of(at::IntArrayRef sizes, size_t item_bytes) {
  uint64_t numel = 0;
  uint64_t bytes = 0;
  const bool overflows = c10::safe_multiplies_u64(sizes, &numel) ||
      c10::mul_overflows(numel, uint64_t{item_bytes}, &bytes);
  return overflows ? std::numeric_limits<size_t>::max() : bytes;
}

at::Tensor empty_small(at::IntArrayRef sizes, at::ScalarType dtype) {
  const size_t bytes = bytes_of(sizes, c10::elementSize(dtype));
  if (bytes == 0 || bytes > kQuickBytes ||
      c10::GetCPUAllocator() != c10::GetDefaultCPUAllocator()) {
    return at::detail::empty_cpu(sizes, dtype);
  }
  return tensor_in(small_memory(bytes), bytes, sizes, dtype);
}

} // namespace dtensor::detail
