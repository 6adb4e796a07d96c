// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/parallelize_program.h>

#include <dtensor/comm/mesh_scope.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/distribute_module.h>
#include <dtensor/program/program_state_impl.h>
#include <dtensor/tensor/dtensor.h>

#include <torch/nn/module.h>

namespace dtensor {
namespace {

constexpr const char* kParallelizeProgram = "parallelize_program";

} // namespace

void parallelize_program(
    Program& program,
    const DeviceMesh& given_mesh,
    const ParallelizePlan& plan,
    const ParallelizeProgramOptions& options) {
  auto& state = state_of(program);
  const auto mesh = detail::mesh_or_current(given_mesh, kParallelizeProgram);
  DTENSOR_CHECK(
      !state.mesh.defined(),
      "[{}] {} is already parallelized on {}. Load it again.",
      kParallelizeProgram,
      state.path,
      state.mesh);
  if (!plan.empty()) {
    const bool has_others = mesh.ndim() > 1;
    parallelize_module(
        *state.module,
        has_others ? mesh[options.plan_dim] : mesh,
        plan,
        {.keep_dtensors = true, .root_mesh = has_others ? mesh : DeviceMesh()});
  }
  distribute_module(*state.module, mesh);
  state.mesh = mesh;
  detail::read_weights(state);
  for (size_t i = 0; i < state.inputs.size(); ++i) {
    if (state.graph.inputs[i].kind == detail::InputKind::kConstant) {
      state.inputs[i] = replicate_tensor(state.inputs[i], mesh);
    }
  }
}

} // namespace dtensor
