// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/rank_memory_impl.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <mutex>

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
  return std::any_of(kVariables.begin(), kVariables.end(), [](const char* v) {
    return std::getenv(v) != nullptr;
  });
}

// The largest block that malloc maps by itself, that the top of a heap grows by
// at least, and that is given back from it.
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

struct Users {
  std::mutex mutex;
  int64_t count = 0;
};

Users& users() {
  static Users all;
  return all;
}

} // namespace

KeepFreedMemory::KeepFreedMemory(bool wanted)
    : wanted_(wanted && !tuned_by_user()) {
  const std::lock_guard<std::mutex> lock(users().mutex);
  if (wanted_ && users().count++ == 0) {
    // A thread's heap holds the largest blocks that it may, grows by what it
    // may at most, and gives nothing back.
    set_malloc(32 << 20, 64 << 20, std::numeric_limits<int>::max());
  }
}

KeepFreedMemory::~KeepFreedMemory() {
  const std::lock_guard<std::mutex> lock(users().mutex);
  if (wanted_ && --users().count == 0) {
    set_malloc(32 << 20, 128 << 10, 64 << 20);
  }
}

} // namespace dtensor::detail
