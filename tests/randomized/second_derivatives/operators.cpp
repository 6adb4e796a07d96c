// SPDX-License-Identifier: BSD-3-Clause
// Single operators with drawn arguments.
#include "tests/randomized/harness/operators.h"
#include "program.h"
#include "tests/randomized/harness/arguments.h"

namespace dtensor::second_derivatives {
namespace {

bool writes_self(const c10::FunctionSchema& schema) {
  const auto* alias = schema.arguments()[0].alias_info();
  return alias != nullptr && alias->isWrite();
}

} // namespace

Program draw_operator(
    const std::string& op,
    const std::vector<int64_t>& mesh,
    Random& random) {
  const auto handle = randomized::find_operator(op);
  Program program;
  program.name = op;
  for (const auto& operand :
       randomized::draw_operands(handle.schema(), random)) {
    program.operands.push_back(randomized::full_operand(
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
    auto stack = randomized::draw_arguments(handle.schema(), given, variant);
    handle.callBoxed(&stack);
    return Results{randomized::tensors_in(stack), {}};
  };
  return program;
}

} // namespace dtensor::second_derivatives
