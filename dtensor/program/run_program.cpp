// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/program.h>

#include <dtensor/error.h>
#include <dtensor/program/interpreter_impl.h>

#include <ATen/core/grad_mode.h>

#include <utility>

namespace dtensor {
namespace {

using c10::IValue;
using detail::InputKind;
using detail::Interpreter;
using detail::ProgramState;

void bind_inputs(
    Interpreter& interpreter,
    const ProgramState& state,
    std::vector<IValue> inputs) {
  size_t next = 0;
  for (size_t i = 0; i < state.graph.inputs.size(); ++i) {
    const auto& input = state.graph.inputs[i];
    interpreter.values()[input.slot] = input.kind == InputKind::kUser
        ? interpreter.placed(std::move(inputs[next++]))
        : IValue(state.inputs[i]);
  }
}

void mutate(Interpreter& interpreter, const ProgramState& state) {
  const c10::NoGradGuard no_grad;
  const auto& values = interpreter.values();
  for (const auto& mutation : state.graph.mutations) {
    const auto& target = values[state.graph.inputs[mutation.input].slot];
    target.toTensor().copy_(values[mutation.value].toTensor());
  }
}

} // namespace

std::vector<IValue> Program::run(std::vector<IValue> inputs) {
  detail::check_inputs(*state_, inputs);
  detail::read_weights(*state_);
  detail::OperandLayouts layouts(state_->graph, state_->layouts);
  Interpreter interpreter(*state_, state_->mesh.defined() ? &layouts : nullptr);
  bind_inputs(interpreter, *state_, std::move(inputs));
  for (const auto& node : state_->graph.nodes) {
    interpreter.call(node);
    for (const auto slot : node.last_uses) {
      interpreter.values()[slot] = IValue();
      layouts.forget(slot);
    }
  }
  mutate(interpreter, *state_);
  std::vector<IValue> outputs;
  outputs.reserve(state_->graph.outputs.size());
  for (const auto& output : state_->graph.outputs) {
    outputs.push_back(interpreter.value_of(output));
  }
  return outputs;
}

at::Tensor Program::operator()(const std::vector<at::Tensor>& inputs) {
  auto results = run({inputs.begin(), inputs.end()});
  DTENSOR_CHECK_VALUE(
      results.size() == 1 && results[0].isTensor(),
      "[Program] {} returns {}{}. Call run().",
      state_->path,
      results.size(),
      results.size() == 1 ? " value, which is not a tensor" : " values");
  return results[0].toTensor();
}

} // namespace dtensor
