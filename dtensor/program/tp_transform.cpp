// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/tp_transform.h>

#include <dtensor/comm/rank_local_impl.h>
#include <dtensor/program/find_pairs_impl.h>
#include <dtensor/program/merged_plan_impl.h>
#include <dtensor/program/parallelize_script.h>
#include <dtensor/program/read_script_impl.h>

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include <memory>
#include <utility>

namespace dtensor {
namespace {

// Keeps alive the modules that hold the script's tensors, because ties between
// modules are known only while they live.
struct Kept {
  c10::weak_intrusive_ptr<c10::ivalue::Object> script;
  std::shared_ptr<torch::nn::Module> modules;
};

detail::RankLocal<std::vector<Kept>> kept;

void keep(
    const torch::jit::Module& script,
    std::shared_ptr<torch::nn::Module> modules) {
  auto& all = kept.get();
  std::erase_if(all, [](const auto& one) { return one.script.expired(); });
  const auto object = script._ivalue();
  all.push_back(
      {c10::weak_intrusive_ptr<c10::ivalue::Object>(object),
       std::move(modules)});
}

} // namespace

std::vector<PlanEntryText> find_tp_plan(const Program& program) {
  const auto& state = state_of(program);
  return detail::merged_plan(detail::find_pairs(state), *state.module);
}

std::vector<PlanEntryText> tp_transform(
    Program& program,
    const DeviceMesh& mesh,
    const ParallelizeProgramOptions& options) {
  auto plan = find_tp_plan(program);
  parallelize_program(program, mesh, make_plan(plan), options);
  return plan;
}

std::vector<PlanEntryText> find_tp_plan(
    const torch::jit::Module& script,
    const std::vector<c10::IValue>& sample_inputs) {
  const auto state = detail::state_of_script(script, sample_inputs);
  return detail::merged_plan(detail::find_pairs(state), *state.module);
}

std::vector<PlanEntryText> tp_transform(
    torch::jit::Module& script,
    const DeviceMesh& mesh,
    const std::vector<c10::IValue>& sample_inputs) {
  auto plan = find_tp_plan(script, sample_inputs);
  keep(script, parallelize_script(script, mesh, make_plan(plan)));
  return plan;
}

} // namespace dtensor
