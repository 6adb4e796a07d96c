// SPDX-License-Identifier: BSD-3-Clause
// Warm operators under callgrind, which counts the instructions of each.
// tools/instructions.py runs this program and reads the counts. Run directly,
// it prints the number of calls per count.
#include "harness.h"
#include "op_cases.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <dtensor/random/random.h>
#include <dtensor/testing/fake_world.h>
#include <valgrind/callgrind.h>

namespace {

constexpr int64_t kWorldSize = 8;
constexpr int64_t kCalls = 100;

// Writes one section of callgrind's output, called `name`.
void count(const std::string& name, const std::function<void()>& call) {
  // Warms caches and fills growing buffers.
  for (int64_t i = 0; i < kCalls; ++i) {
    call();
  }
  CALLGRIND_ZERO_STATS;
  for (int64_t i = 0; i < kCalls; ++i) {
    call();
  }
  CALLGRIND_DUMP_STATS_AT(name.c_str());
}

void add(std::vector<bench::Case>& cases, std::vector<bench::Case> more) {
  cases.insert(cases.end(), more.begin(), more.end());
}

void run(
    const std::vector<bench::Case>& cases,
    const std::string& mode,
    const bench::Options& options) {
  for (const auto& one : cases) {
    const std::string name = "instructions/" + one.name + "/" + mode;
    if (!options.wants(name)) {
      continue;
    }
    count(name, one.dtensor);
    if (one.plain) {
      count(name + "/plain", one.plain);
    }
    bench::report(name, {{"calls", static_cast<double>(kCalls)}});
  }
}

} // namespace

int main(int argc, char** argv) {
  const auto options =
      bench::parse(argc, argv, "Warm operators, for callgrind to count");
  at::set_num_threads(1);
  dtensor::testing::with_fake_world(0, kWorldSize, [&] {
    dtensor::manual_seed(0); // the time of some kernels depends on the values
    std::vector<bench::Case> forward;
    {
      const at::NoGradGuard no_grad;
      forward = bench::operator_cases(kWorldSize, false);
      add(forward, bench::conversion_cases(kWorldSize));
      add(forward, bench::module_cases(kWorldSize, false));
    }
    auto backward = bench::operator_cases(kWorldSize, true);
    add(backward, bench::module_cases(kWorldSize, true));
    CALLGRIND_START_INSTRUMENTATION;
    {
      const at::NoGradGuard no_grad;
      run(forward, "no_grad", options);
    }
    run(backward, "grad", options);
    CALLGRIND_STOP_INSTRUMENTATION;
  });
}
