// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/rank/rank_memory_impl.h>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/alignment.h>
#include <c10/util/safe_numerics.h>
#include <dtensor/error.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <utility>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace dtensor::detail {
namespace {

bool tuned_by_user() {
  constexpr std::array<const char*, 4> kVariables = {
      "MALLOC_TRIM_THRESHOLD_",
      "MALLOC_MMAP_THRESHOLD_",
      "MALLOC_TOP_PAD_",
      "GLIBC_TUNABLES"};
  return std::ranges::any_of(
      kVariables, [](const char* v) { return std::getenv(v) != nullptr; });
}

// Sets malloc's parameters. `map`: size from which malloc maps a block on its
// own. `grow`: least growth of a heap's top. `trim`: free size kept at the top.
void set_malloc(
    [[maybe_unused]] int map,
    [[maybe_unused]] int grow,
    [[maybe_unused]] int trim) {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, map);
  mallopt(M_TOP_PAD, grow);
  mallopt(M_TRIM_THRESHOLD, trim);
#endif
}

constexpr size_t kPage = 4096;

// Size from which malloc maps a block on its own, outside of its heaps.
constexpr size_t kLargest = 32 << 20;
// Largest addressable size. LibTorch reports an error for larger ones.
constexpr size_t kLongest = std::numeric_limits<ptrdiff_t>::max();

struct Users {
  std::mutex mutex;
  std::atomic<int64_t> count{0};
};

Users& users() {
  static Users all;
  return all;
}

// Freed blocks of results, for reuse by results of the same size. Bytes in use
// and bytes kept together never exceed most_, the highest use so far.
class LargeBlocks {
 public:
  void* take_block(size_t bytes) {
    const std::lock_guard lock(mutex_);
    void* block = nullptr;
    if (const auto found = kept_.find(bytes); found != kept_.end()) {
      block = found->second;
      kept_.erase(found);
      kept_bytes_ -= bytes;
    } else {
      const size_t more = used_ + bytes;
      keep_at_most(most_ > more ? most_ - more : 0);
      block = std::aligned_alloc(c10::gAlignment, bytes);
      DTENSOR_CHECK(
          block != nullptr,
          "[collective] cannot allocate {} bytes for a result. Communicate "
          "less at a time.",
          bytes);
    }
    used_ += bytes;
    most_ = std::max(most_, used_);
    return block;
  }

  void give_back(void* block, size_t bytes) {
    const std::lock_guard lock(mutex_);
    used_ -= bytes;
    kept_.emplace(bytes, block);
    kept_bytes_ += bytes;
    keep_at_most(users().count > 0 ? most_ - used_ : 0);
  }

  /// Frees all kept blocks.
  void clear() {
    const std::lock_guard lock(mutex_);
    keep_at_most(0);
    most_ = used_;
  }

 private:
  void keep_at_most(size_t bytes) {
    while (kept_bytes_ > bytes) {
      const auto first = kept_.begin();
      std::free(first->second);
      kept_bytes_ -= first->first;
      kept_.erase(first);
    }
  }

  std::mutex mutex_;
  std::multimap<size_t, void*> kept_;
  size_t kept_bytes_ = 0;
  size_t used_ = 0;
  size_t most_ = 0;
};

// Never destroyed: results may outlive all static objects.
LargeBlocks& large_blocks() {
  static auto* const all = new LargeBlocks;
  return *all;
}

at::DataPtr large_memory(size_t bytes) {
  return c10::InefficientStdFunctionContext::makeDataPtr(
      large_blocks().take_block(bytes),
      [bytes](void* block) { large_blocks().give_back(block, bytes); },
      at::kCPU);
}

} // namespace

KeepFreedMemory::KeepFreedMemory(bool wanted)
    : wanted_(wanted && !tuned_by_user()) {
  const std::lock_guard<std::mutex> lock(users().mutex);
  if (wanted_ && users().count++ == 0) {
    // Maximum values: heaps hold the largest blocks allowed, grow by the
    // largest step, and are never trimmed.
    set_malloc(32 << 20, 64 << 20, std::numeric_limits<int>::max());
  }
}

KeepFreedMemory::~KeepFreedMemory() {
  const std::lock_guard<std::mutex> lock(users().mutex);
  if (wanted_ && --users().count == 0) {
    set_malloc(32 << 20, 128 << 10, 64 << 20);
    large_blocks().clear();
  }
}

at::Tensor empty_result(
    at::IntArrayRef sizes,
    const at::TensorOptions& options) {
  const size_t bytes = bytes_of(sizes, options.dtype().itemsize());
  if (options.device().is_cpu() && bytes <= kQuickBytes) {
    return empty_small(sizes, c10::typeMetaToScalarType(options.dtype()));
  }
  const bool is_kept = bytes >= kLargest && bytes <= kLongest;
  if (!is_kept || !options.device().is_cpu() || users().count == 0) {
    return at::empty(sizes, options);
  }
  // aligned_alloc needs a multiple of the alignment.
  const size_t rounded = (bytes + kPage - 1) / kPage * kPage;
  return tensor_in(
      large_memory(rounded),
      rounded,
      sizes,
      c10::typeMetaToScalarType(options.dtype()));
}

at::Tensor tensor_in(
    at::DataPtr memory,
    size_t bytes,
    at::IntArrayRef sizes,
    at::ScalarType dtype) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(),
      bytes,
      std::move(memory),
      c10::GetCPUAllocator(),
      /*resizable=*/true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage),
      c10::DispatchKeySet(c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

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
