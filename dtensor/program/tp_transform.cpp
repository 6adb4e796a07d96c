// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/tp_transform.h>

#include <dtensor/program/find_pairs_impl.h>

#include <torch/nn/module.h>

namespace dtensor {

std::vector<PlanEntryText> find_tp_plan(const Program& program) {
  const auto& state = state_of(program);
  return detail::merged_plan(
      detail::find_pairs(state, *state.module), *state.module);
}

std::vector<PlanEntryText> tp_transform(
    Program& program,
    const DeviceMesh& mesh,
    const ParallelizeProgramOptions& options) {
  auto plan = find_tp_plan(program);
  parallelize_program(program, mesh, make_plan(plan), options);
  return plan;
}

} // namespace dtensor
