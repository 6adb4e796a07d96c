// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/tp_transform.h>

#include <c10/util/StringUtil.h>
#include <dtensor/program/find_pairs_impl.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <string_view>

namespace dtensor::detail {
namespace {

// Replaces numbers: "layers.0.fc" -> "layers.*.fc".
std::string without_numbers(const std::string& name) {
  std::string pattern;
  for (const auto part : c10::split(name, '.')) {
    const bool is_number =
        part.find_first_not_of("0123456789") == std::string_view::npos;
    pattern += (pattern.empty() ? "" : ".") +
        (is_number ? std::string("*") : std::string(part));
  }
  return pattern;
}

} // namespace

std::vector<PlanEntryText> find_plan(
    const ProgramState& state,
    const torch::nn::Module& root) {
  const auto lines = find_pairs(state, root);
  std::vector<std::string> names;
  for (const auto& item : root.named_modules("", false)) {
    names.push_back(item.key());
  }
  const auto count = [](const auto& all, const auto& is_one) {
    return std::ranges::count_if(all, is_one);
  };
  std::vector<PlanEntryText> result;
  for (const auto& line : lines) {
    const PlanEntryText merged{without_numbers(line.pattern), line.style};
    const auto alike = count(lines, [&](const auto& other) {
      return other.style == merged.style &&
          without_numbers(other.pattern) == merged.pattern;
    });
    const auto matching = count(names, [&](const auto& name) {
      return without_numbers(name) == merged.pattern;
    });
    const auto& entry = alike > 1 && alike == matching ? merged : line;
    if (std::ranges::find(result, entry) == result.end()) {
      result.push_back(entry);
    }
  }
  return result;
}

} // namespace dtensor::detail

namespace dtensor {

std::vector<PlanEntryText> find_tp_plan(const Program& program) {
  const auto& state = state_of(program);
  return detail::find_plan(state, *state.module);
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
