// SPDX-License-Identifier: BSD-3-Clause
// dtensor_programs: runs random programs on DTensors and on plain tensors, and
// compares them after each step. See program.h.
//
//   dtensor_programs --seed 1 --cases 300     what ctest runs
//   dtensor_programs --seed 4711 --cases 1    one program again
#include <ATen/Parallel.h>
#include <tests/randomized/harness/harness.h>

#include "program.h"
#include "trial.h"

int main(int argc, char** argv) {
  using namespace dtensor;
  at::set_num_threads(1);
  randomized::Harness harness(
      "programs", "Random programs against plain tensors", 300);
  harness.parse(argc, argv);
  harness.run([](uint64_t seed) {
    const auto program = programs::draw_program(seed);
    return randomized::Case{
        program.text(),
        [program] { return programs::try_program(program); },
        [program] { return programs::shrink(program); }};
  });
  return harness.report();
}
