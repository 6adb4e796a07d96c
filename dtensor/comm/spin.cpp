// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/spin.h>

#include <chrono>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace dtensor {
namespace {

void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

bool pause_until(c10::function_ref<bool()> done, int times) {
  for (int i = 0; i < times; ++i) {
    if (done()) {
      return true;
    }
    pause_briefly();
  }
  return false;
}

using Clock = std::chrono::steady_clock;

// End of the period in which this thread sleeps instead of yielding. A program
// that gets this core by a yield keeps it for milliseconds. A thread that
// sleeps gets the core back at once when it is woken.
thread_local Clock::time_point keep_core_until;

void yield_core() {
  constexpr std::chrono::microseconds kLong(1000);
  constexpr std::chrono::milliseconds kKeep(200);
  const auto before = Clock::now();
  std::this_thread::yield();
  const auto after = Clock::now();
  if (after - before > kLong) {
    keep_core_until = after + kKeep;
  }
}

} // namespace

// Some microseconds of spinning pay off if the peer runs on a core of its own:
// a sleep and a wake-up take longer than the wait of ranks that keep in step. A
// yield gives the core to a peer without a core. Peers may lack a core even if
// there are enough, because other programs run, too.
bool spin(bool fits, c10::function_ref<bool()> done) {
  constexpr int kPauses = 64;
  constexpr std::chrono::microseconds kAwake(500);
  constexpr std::chrono::microseconds kAwakeBesideOthers(20);
  if (fits && pause_until(done, kPauses)) {
    return true;
  }
  auto now = Clock::now();
  const bool may_yield = !fits || now >= keep_core_until;
  const auto deadline = now + (fits && may_yield ? kAwake : kAwakeBesideOthers);
  while (now < deadline) {
    if (pause_until(done, fits ? kPauses / 2 : 1)) {
      return true;
    }
    if (may_yield) {
      yield_core();
    }
    now = Clock::now();
  }
  return done();
}

} // namespace dtensor
