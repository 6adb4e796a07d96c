// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/rank_memory_impl.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <mutex>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace dtensor::detail {
namespace {

[[maybe_unused]] bool tuned_by_user() {
  constexpr std::array<const char*, 4> kVariables = {
      "MALLOC_TRIM_THRESHOLD_",
      "MALLOC_MMAP_THRESHOLD_",
      "MALLOC_TOP_PAD_",
      "GLIBC_TUNABLES"};
  return std::any_of(kVariables.begin(), kVariables.end(), [](const char* v) {
    return std::getenv(v) != nullptr;
  });
}

void tune_malloc() {
#if defined(__GLIBC__)
  if (tuned_by_user()) {
    return;
  }
  // The largest blocks that a thread's own heap may hold, heaps that grow by
  // what they may be at most, and no giving back from their top.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TOP_PAD, 64 << 20);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

} // namespace

void keep_freed_memory() {
  static std::once_flag once;
  std::call_once(once, tune_malloc);
}

} // namespace dtensor::detail
