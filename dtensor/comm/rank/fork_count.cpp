// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/rank/fork_count_impl.h>

#include <pthread.h>

#include <atomic>

namespace dtensor::detail {
namespace {

std::atomic<int64_t> forks{0};

void count_fork() {
  forks.fetch_add(1, std::memory_order_relaxed);
}

} // namespace

int64_t fork_count() {
  static const int counting = pthread_atfork(nullptr, nullptr, count_fork);
  static_cast<void>(counting);
  return forks.load(std::memory_order_relaxed);
}

} // namespace dtensor::detail
