// SPDX-License-Identifier: BSD-3-Clause
// Single operators, with arguments drawn by the tables of tests/property.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/StringUtil.h>
#include <dtensor/ops/registry.h>
#include <dtensor/tensor/is_dtensor.h>

#include <set>

#include "program.h"

namespace dtensor::second_derivatives {
namespace {

std::optional<c10::OperatorHandle> find(const std::string& op) {
  return c10::Dispatcher::singleton().findSchema(parse_operator_name(op));
}

bool writes_self(const c10::FunctionSchema& schema) {
  const auto* alias = schema.arguments()[0].alias_info();
  return alias != nullptr && alias->isWrite();
}

// True if the results are a function of the arguments' values. Gradient
// formulas do not check their shapes; they are tested through their forward
// operators.
bool is_testable(const std::string& op) {
  static const std::set<std::string> without_values = {
      "empty_like",
      "new_empty",
      "new_empty_strided",
      "empty_strided",
      "record_stream",
      "_reshape_alias", // meaningless strides
      "is_same_size",
      "_debug_has_internal_overlap"};
  const auto handle = find(op);
  if (!handle || op.rfind("_foreach", 0) == 0 || op.rfind("_fused", 0) == 0) {
    return false;
  }
  const auto& schema = handle->schema();
  return schema.name().rfind("aten::", 0) == 0 && !schema.arguments().empty() &&
      !handle->hasTag(at::Tag::nondeterministic_seeded) &&
      without_values.count(schema.name().substr(6)) == 0 &&
      op.find("backward") == std::string::npos &&
      op.find("dropout") == std::string::npos;
}

Tensors tensors_in(const torch::jit::Stack& stack) {
  Tensors tensors;
  for (const auto& value : stack) {
    if (value.isTensor() && value.toTensor().defined()) {
      tensors.push_back(value.toTensor());
    } else if (value.isTensorList()) {
      for (const auto& t : value.toTensorVector()) {
        tensors.push_back(t);
      }
    }
  }
  return tensors;
}

} // namespace

std::vector<std::string> operators(const std::string& only) {
  std::vector<std::string> all;
  for (const auto& registered : RuleRegistry::global().names()) {
    const auto name =
        registered.rfind("aten::", 0) == 0 ? registered.substr(6) : registered;
    const auto dot = std::min(name.find('.'), name.size());
    for (const auto& op :
         {name, name.substr(0, dot) + "_" + name.substr(dot)}) {
      if ((only.empty() || op.substr(0, op.find('.')) == only) &&
          is_testable(op)) {
        all.push_back(op);
      }
    }
  }
  return all;
}

Program draw_operator(
    const std::string& op,
    const std::vector<int64_t>& mesh,
    Random& random) {
  const auto handle = find(op).value();
  Program program;
  program.name = op;
  for (const auto& operand : property::draw_operands(handle.schema(), random)) {
    program.operands.push_back(property::full_operand(
        operand, static_cast<uint64_t>(random.below(1 << 20))));
    program.layouts.push_back(draw_layout(
        static_cast<int64_t>(operand.sizes.size()),
        operand.dtype == at::kDouble,
        mesh,
        random));
  }
  const auto variant = static_cast<uint64_t>(random.below(100000));
  program.run = [handle, variant](const Tensors& operands, const DeviceMesh*) {
    auto given = operands;
    if (writes_self(handle.schema()) && !given.empty()) {
      given[0] = given[0].clone();
    }
    auto stack = property::draw_arguments(handle.schema(), given, variant);
    handle.callBoxed(&stack);
    return Results{tensors_in(stack), {}};
  };
  return program;
}

} // namespace dtensor::second_derivatives
