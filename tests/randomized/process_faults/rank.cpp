// SPDX-License-Identifier: BSD-3-Clause
#include "rank.h"

#include <ATen/Parallel.h>
#include <dtensor/comm/collective_timeout.h>
#include <dtensor/comm/run_world.h>
#include <dtensor/dtensor.h>
#include <tests/randomized/faults/points.h>
#include <tests/randomized/faults/training_step.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <thread>

namespace dtensor::process_faults {
namespace {

using namespace std::chrono_literals;

void tell_time() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  std::cout
      << kFaultAt
      << std::chrono::duration_cast<std::chrono::milliseconds>(now).count()
      << std::endl;
}

void do_wrong(const Case& fault, Group& group) {
  tell_time();
  switch (fault.kind) {
    case Kind::kThrows:
      TORCH_CHECK(false, "no such row");
    case Kind::kExits:
      std::exit(kExited);
    case Kind::kKilled:
      std::raise(SIGKILL);
      return;
    case Kind::kCrashes:
      std::signal(SIGSEGV, SIG_DFL);
      std::raise(SIGSEGV);
      return;
    case Kind::kHangs:
      std::this_thread::sleep_for(1h);
      return;
    case Kind::kComesLate:
      std::this_thread::sleep_for(fault.timeout() + 3s);
      return;
    case Kind::kCallsOther:
      group.broadcast(torch::ones({7}), 0);
      return;
  }
}

void train_as_rank(const Case& fault) {
  const auto mesh = init_device_mesh(at::kCPU, {get_world_size()}, {"tp"});
  auto& group = get_group(mesh);
  const CollectiveTimeout limit(fault.timeout());
  faults::PointCounter counter([&](int64_t point) {
    if (get_rank() == fault.culprit && point == fault.point) {
      do_wrong(fault, group);
    }
  });
  const auto model = faults::make_model(mesh);
  const CommObserverGuard observing(counter);
  faults::train(model, mesh, [&] { counter.pass(); });
  if (fault.culprit < 0 && get_rank() == 0) {
    std::cout << kPoints << counter.points().last_collective + 1 << std::endl;
  }
}

bool is_culprits_process(const World& world, const Case& fault) {
  return fault.culprit >= 0 &&
      launched()->rank == fault.culprit / world.threads;
}

} // namespace

int run_rank(const World& world, const Case& fault) {
  at::set_num_threads(1);
  RunWorldOptions options;
  options.ranks_per_process = world.threads;
  options.processes.backend = world.backend;
  options.processes.timeout = fault.is_absent() ? fault.timeout() : 60s;
  options.processes.checks = fault.compares;
  if (fault.is_absent() && is_culprits_process(world, fault)) {
    tell_time();
    std::this_thread::sleep_for(fault.timeout() + 3s);
  }
  try {
    run_world(
        1, [&] { train_as_rank(fault); }, options);
  } catch (const c10::Error& error) {
    std::cout << error.what_without_backtrace() << std::endl;
    return kFailed;
  }
  return 0;
}

} // namespace dtensor::process_faults
