// SPDX-License-Identifier: BSD-3-Clause
// dtensor_units: trains random models with sharded parameters or averaged
// gradients, and compares with the plain model. See plan.h.
//
//   dtensor_units --seed 1 --cases 60     what ctest runs
//   dtensor_units --seed 4711 --cases 1   one model again
#include <ATen/Parallel.h>
#include <tests/randomized/harness/harness.h>

#include "trial.h"

int main(int argc, char** argv) {
  using namespace dtensor;
  at::set_num_threads(1);
  randomized::Harness harness(
      "units", "Random models in units against plain models", 60);
  bool shrinks = true;
  harness.app().add_flag("!--no-shrink", shrinks, "Print cases as they are");
  harness.parse(argc, argv);
  harness.run([&](uint64_t seed) {
    const auto plan = units::draw_plan(seed);
    randomized::Case result{
        plan.text(), [plan] { return units::try_plan(plan); }};
    if (shrinks) {
      result.shrink = [plan] { return units::shrink(plan); };
    }
    return result;
  });
  return harness.report();
}
