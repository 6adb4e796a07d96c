// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/interpreter_impl.h>

#include <ATen/ScalarOps.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/jit_type.h>
#include <dtensor/error.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/parallel/autocast.h>
#include <dtensor/program/graph_impl.h>
#include <dtensor/tensor/dtensor.h>
#include <dtensor/weights/json_document_impl.h>

#include <new>
#include <stdexcept>
#include <utility>

namespace dtensor::detail {
namespace {

using c10::IValue;

// Returns the context of an error: "in aten::linear of layers.0.fc at
// model.py:12: ...".
std::string describe_node(const GraphNode& node, const std::string& path) {
  return detail::format_text(
      "in {}{}{} ({})",
      node.target,
      node.module.empty() ? "" : " of " + shown_name(node.module),
      node.source,
      path);
}

// Extracts the failed condition. The operators check most values from a file
// with messages, and use plain assertions for the rest.
std::string condition_of(const std::string& text) {
  return text.substr(0, text.find(" INTERNAL ASSERT FAILED"));
}

} // namespace

void Interpreter::refuse_call(const GraphNode& node, const std::string& why)
    const {
  DTENSOR_THROW_VALUE(
      "[Program] an operator does not accept its arguments: {}, {}. Export "
      "the program again.",
      why,
      describe_node(node, state_.path));
}

Interpreter::~Interpreter() {
  while (!scopes_.empty()) {
    scopes_.pop_back();
  }
}

IValue Interpreter::placed(IValue value, bool random) const {
  if (!state_.mesh.defined() || !value.isTensor()) {
    return value;
  }
  const auto& t = value.toTensor();
  if (!t.defined() || is_dtensor(t)) {
    return value;
  }
  if (random) {
    return distribute_tensor(
        t, state_.mesh, replicated_placements(state_.mesh));
  }
  return replicate_tensor(t, state_.mesh);
}

IValue Interpreter::value_of(const Operand& operand) const {
  if (const auto* constant = std::get_if<IValue>(&operand)) {
    return *constant;
  }
  if (const auto* list = std::get_if<ListOperand>(&operand)) {
    return list->filled(values_);
  }
  const auto& [slot, conversion] = std::get<ValueOperand>(operand);
  const auto& value = values_[slot];
  if (conversion == OperandConversion::kNumberToTensor && value.isScalar()) {
    return at::native::wrapped_scalar_tensor(value.toScalar());
  }
  if (conversion == OperandConversion::kIntToFloat && value.isInt()) {
    return static_cast<double>(value.toInt());
  }
  return value;
}

void Interpreter::call(const GraphNode& node) {
  try {
    stack_.clear();
    for (const auto& arg : node.args) {
      stack_.push_back(value_of(arg));
    }
    carry_out(node);
  } catch (c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    if (const auto reason = condition_of(text); reason.size() < text.size()) {
      refuse_call(node, reason);
    }
    error.add_context(describe_node(node, state_.path));
    throw;
  } catch (const std::logic_error& error) {
    refuse_call(node, error.what());
  } catch (const std::bad_alloc& error) {
    refuse_call(node, error.what());
  }
}

void Interpreter::carry_out(const GraphNode& node) {
  if (const auto* op = std::get_if<c10::OperatorHandle>(&node.call)) {
    call_operator(*op, node);
  } else if (const auto* function = std::get_if<ScalarFunction>(&node.call)) {
    store(node.results[0], (*function)(stack_), false);
  } else if (const auto* mode = std::get_if<BeginGradMode>(&node.call)) {
    scopes_.push_back(std::make_shared<c10::AutoGradMode>(mode->enabled));
  } else if (const auto* cast = std::get_if<BeginAutocast>(&node.call)) {
    scopes_.push_back(std::make_shared<Autocast>(
        cast->device, cast->dtype, cast->enabled, cast->caches));
  } else {
    TORCH_INTERNAL_ASSERT(
        std::holds_alternative<EndScope>(node.call),
        node.target,
        " was not read");
    scopes_.pop_back();
  }
}

void Interpreter::call_operator(
    const c10::OperatorHandle& op,
    const GraphNode& node) {
  if (node.check != nullptr) {
    node.check(op.schema(), stack_);
  }
  if (layouts_ != nullptr) {
    layouts_->place(node, op, stack_, values_);
  }
  op.callBoxed(&stack_);
  if (layouts_ != nullptr) {
    layouts_->called(node, stack_);
  }
  for (size_t i = 0; i < node.results.size() && i < stack_.size(); ++i) {
    store(node.results[i], std::move(stack_[i]), node.is_random);
  }
}

void Interpreter::store(const Result& result, IValue value, bool random) {
  if (!result.is_list) {
    if (!result.slots.empty() && result.slots[0]) {
      values_[*result.slots[0]] = placed(std::move(value), random);
    }
    return;
  }
  const auto list = value.toTensorVector();
  for (size_t i = 0; i < result.slots.size() && i < list.size(); ++i) {
    if (result.slots[i]) {
      values_[*result.slots[i]] = placed(list[i], random);
    }
  }
}

IValue ListOperand::filled(c10::ArrayRef<IValue> values) const {
  const auto at = [&](const std::variant<IValue, Slot>& item) -> const IValue& {
    const auto* slot = std::get_if<Slot>(&item);
    return slot == nullptr ? std::get<IValue>(item) : values[*slot];
  };
  const auto filled = [&](auto made, const auto& get) {
    made.reserve(items.size());
    for (const auto& item : items) {
      made.push_back(get(at(item)));
    }
    return IValue(std::move(made));
  };
  switch (of) {
    case ListOf::kTensor:
      return filled(c10::List<at::Tensor>(), [](const IValue& v) {
        return v.toTensor();
      });
    case ListOf::kOptionalTensor:
      return filled(
          c10::List<std::optional<at::Tensor>>(),
          [](const IValue& v) { return v.toOptional<at::Tensor>(); });
    case ListOf::kInt:
      return filled(
          c10::List<int64_t>(), [](const IValue& v) { return v.toInt(); });
    case ListOf::kFloat:
      return filled(c10::List<double>(), [](const IValue& v) {
        return v.isInt() ? static_cast<double>(v.toInt()) : v.toDouble();
      });
    case ListOf::kBool:
      return filled(
          c10::List<bool>(), [](const IValue& v) { return v.toBool(); });
    case ListOf::kNumber:
      break;
  }
  return filled(
      c10::impl::GenericList(c10::NumberType::get()),
      [](const IValue& v) { return v; });
}

} // namespace dtensor::detail
