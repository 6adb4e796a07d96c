// SPDX-License-Identifier: BSD-3-Clause
// Cost of a warm operator on this rank: DTensors against plain tensors of the
// local shape, without communication (testing/fake_world.h).
#include "harness.h"
#include "op_cases.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <dtensor/testing/fake_world.h>

namespace {

void run(
    const std::vector<bench::Case>& cases,
    const std::string& mode,
    int64_t world_size,
    const bench::Options& options) {
  for (const auto& one : cases) {
    bench::run_pair(
        "warm/" + one.name + "/" + mode + "/" + std::to_string(world_size),
        one.dtensor,
        one.plain,
        options);
  }
}

void run_world(int64_t world_size, const bench::Options& options) {
  {
    const at::NoGradGuard no_grad;
    run(bench::operator_cases(world_size, false),
        "no_grad",
        world_size,
        options);
    run(bench::conversion_cases(world_size), "no_grad", world_size, options);
  }
  run(bench::operator_cases(world_size, true), "grad", world_size, options);
}

} // namespace

int main(int argc, char** argv) {
  const auto options =
      bench::parse(argc, argv, "Warm operators without communication");
  at::set_num_threads(1);
  for (const int64_t world_size : {2, 8, 256}) {
    dtensor::testing::with_fake_world(
        0, world_size, [&] { run_world(world_size, options); });
  }
}
