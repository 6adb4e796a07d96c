// SPDX-License-Identifier: BSD-3-Clause
// The interpreter: a loop of boxed calls over a table of values.
#include <dtensor/program/program.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/program/program_state_impl.h>
#include <dtensor/program/source_line_impl.h>
#include <dtensor/tensor/dtensor.h>

#include <ATen/ScalarOps.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>
#include <c10/util/StringUtil.h>

#include <utility>

namespace dtensor {
namespace detail {
namespace {

using c10::IValue;

constexpr const char* kProgram = "Program";

class Run {
 public:
  explicit Run(ProgramState& state)
      : state_(state),
        values_(state.graph.num_slots) {}

  std::vector<IValue> operator()(std::vector<IValue> inputs) {
    bind(std::move(inputs));
    for (const auto& node : state_.graph.nodes) {
      call(node);
    }
    mutate();
    std::vector<IValue> outputs;
    outputs.reserve(state_.graph.outputs.size());
    for (const auto& output : state_.graph.outputs) {
      outputs.push_back(value_of(output));
    }
    return outputs;
  }

 private:
  // Values of a program on a mesh are DTensors: those that were plain are alike
  // on all ranks.
  IValue placed(IValue value) const {
    if (state_.mesh.defined() && value.isTensor()) {
      const auto& t = value.toTensor();
      if (t.defined() && !is_dtensor(t)) {
        return replicate(t, state_.mesh);
      }
    }
    return value;
  }

  void bind(std::vector<IValue> inputs) {
    size_t next = 0;
    for (size_t i = 0; i < state_.graph.inputs.size(); ++i) {
      const auto& input = state_.graph.inputs[i];
      values_[input.slot] = input.kind == InputKind::kUser
          ? placed(std::move(inputs[next++]))
          : IValue(state_.inputs[i]);
    }
  }

  IValue value_of(const Operand& operand) const {
    if (const auto* constant = std::get_if<IValue>(&operand)) {
      return *constant;
    }
    if (const auto* list = std::get_if<ListOperand>(&operand)) {
      return make_list(*list, values_);
    }
    const auto& [slot, conversion] = std::get<ValueOperand>(operand);
    const auto& value = values_[slot];
    if (conversion == Conversion::kNumberToTensor && value.isScalar()) {
      auto number = at::scalar_to_tensor(value.toScalar());
      number.unsafeGetTensorImpl()->set_wrapped_number(true);
      return number;
    }
    if (conversion == Conversion::kIntToFloat && value.isInt()) {
      return static_cast<double>(value.toInt());
    }
    return value;
  }

  void call(const Node& node) {
    try {
      stack_.clear();
      for (const auto& arg : node.args) {
        stack_.push_back(value_of(arg));
      }
      std::visit([&](const auto& what) { carry_out(what, node); }, node.call);
    } catch (c10::Error& error) {
      error.add_context(describe(node));
      throw;
    }
    for (const auto slot : node.last_uses) {
      values_[slot] = IValue();
    }
  }

  void carry_out(const c10::OperatorHandle& op, const Node& node) {
    op.callBoxed(&stack_);
    for (size_t i = 0; i < node.results.size() && i < stack_.size(); ++i) {
      store(node.results[i], std::move(stack_[i]));
    }
  }
  void carry_out(ScalarFunction function, const Node& node) {
    store(node.results[0], function(stack_));
  }
  void carry_out(const BeginGradMode& mode, const Node&) {
    before_.push_back(c10::GradMode::is_enabled());
    c10::GradMode::set_enabled(mode.enabled);
  }
  void carry_out(const EndGradMode&, const Node&) {
    c10::GradMode::set_enabled(before_.back());
    before_.pop_back();
  }

  void store(const Result& result, IValue value) {
    if (!result.is_list) {
      if (!result.slots.empty() && result.slots[0]) {
        values_[*result.slots[0]] = placed(std::move(value));
      }
      return;
    }
    const auto list = value.toTensorVector();
    for (size_t i = 0; i < result.slots.size() && i < list.size(); ++i) {
      if (result.slots[i]) {
        values_[*result.slots[i]] = placed(list[i]);
      }
    }
  }

  void mutate() {
    const c10::NoGradGuard no_grad;
    for (const auto& mutation : state_.graph.mutations) {
      const auto& target = values_[state_.graph.inputs[mutation.input].slot];
      target.toTensor().copy_(values_[mutation.value].toTensor());
    }
  }

  // "in aten::linear of layers.0.fc at model.py:12: ..."
  std::string describe(const Node& node) const {
    return c10::str(
        "in ",
        node.target,
        node.module.empty() ? "" : " of " + node.module,
        describe_source(node.source),
        " (",
        state_.path,
        ")");
  }

  // Ends all scopes of a run that threw.
  const c10::AutoGradMode restore_{c10::GradMode::is_enabled()};
  ProgramState& state_;
  std::vector<IValue> values_;
  torch::jit::Stack stack_;
  std::vector<bool> before_; // of the scopes around
};

} // namespace
} // namespace detail

std::vector<c10::IValue> Program::run(std::vector<c10::IValue> inputs) {
  detail::check_inputs(*state_, inputs);
  detail::read_weights(*state_);
  return detail::Run(*state_)(std::move(inputs));
}

at::Tensor Program::operator()(const std::vector<at::Tensor>& inputs) {
  const auto& outputs = state_->graph.outputs;
  auto results = run({inputs.begin(), inputs.end()});
  DTENSOR_CHECK_VALUE(
      results.size() == 1 && results[0].isTensor(),
      detail::kProgram,
      state_->path,
      " returns ",
      outputs.size(),
      outputs.size() == 1 ? " value, which is no tensor" : " values",
      ". Call run().");
  return results[0].toTensor();
}

} // namespace dtensor
