// SPDX-License-Identifier: BSD-3-Clause
// A two-layer MLP, colwise then rowwise, small enough that only overhead
// counts, compared with the plain MLP of the full size. No communication.
#include "harness.h"
#include "op_cases.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <dtensor/testing/fake_world.h>

namespace {

void run(
    const std::string& mode,
    int64_t world_size,
    const bench::Options& options) {
  const bool backward = mode == "grad";
  for (const auto& one : bench::module_cases(world_size, backward)) {
    bench::run_pair(
        one.name + "/" + mode + "/" + std::to_string(world_size),
        one.dtensor,
        one.plain,
        options);
  }
}

} // namespace

int main(int argc, char** argv) {
  const auto options =
      bench::parse(argc, argv, "A small MLP without communication");
  at::set_num_threads(1);
  for (const int64_t world_size : {2, 8}) {
    dtensor::testing::with_fake_world(0, world_size, [&] {
      {
        const at::NoGradGuard no_grad;
        run("no_grad", world_size, options);
      }
      run("grad", world_size, options);
    });
  }
}
