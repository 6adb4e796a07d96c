// SPDX-License-Identifier: BSD-3-Clause
#include "attempt.h"

#include "tally.h"

#include <set>

namespace dtensor::randomized {
namespace {

std::string arguments_of(const Call& call) {
  std::string text;
  const auto& arguments = call.op.schema().arguments();
  for (size_t i = 0; i < arguments.size() && i < call.arguments.size(); ++i) {
    const auto& value = call.arguments[i];
    const bool numbers =
        value.isIntList() || value.isDoubleList() || value.isBoolList();
    if (value.isScalar() || value.isBool() || value.isString() || numbers) {
      text += c10::str(text.empty() ? "" : ", ", arguments[i].name(), "=");
      text += numbers ? c10::str("[", c10::Join(", ", value.toListRef()), "]")
                      : c10::str(value);
    }
  }
  return "(" + text + ")";
}

bool is_internal(const std::string& error) {
  return error.find("INTERNAL ASSERT") != std::string::npos;
}

// Judges an error of all ranks. `expected` is the plain operator's error.
Verdict
judge(const std::string& error, const std::string& expected, bool may_refuse) {
  if (!expected.empty()) {
    return is_internal(error) && !is_internal(expected)
        ? Verdict::different("throws " + error)
        : Verdict{};
  }
  const auto kind = refusal_of(error);
  return kind.empty() || !may_refuse ? Verdict::different("throws " + error)
                                     : Verdict::refused(kind, error);
}

std::string values_of(const Trial& trial, Mode mode, const Results& mine) {
  try {
    return value_difference(trial.truth, mode, mine, trial.compared);
  } catch (const c10::Error& e) {
    return c10::str("values: ", e.what_without_backtrace());
  }
}

// Runs one call on all ranks and compares. All ranks return the same verdict.
Verdict attempt(
    const Trial& trial,
    const Tensors& placed,
    Mode mode,
    bool may_refuse,
    Meeting& meeting) {
  const auto& truth = trial.truth;
  const auto& expected = mode == Mode::kGrad ? truth.grad : truth.no_grad;
  const bool forward_only =
      !expected.backward_error.empty() || trial.compared != Compared::kAll;
  const auto mine = compute(
      trial.call, placed, truth.mutated, truth.leaves, mode, forward_only);
  const bool failed = !mine.error.empty() || !mine.backward_error.empty();
  const bool has_shapes = !failed && expected.error.empty();
  const auto told = meeting.tell(
      {mine.error,
       mine.backward_error,
       has_shapes ? shape_difference(truth, mode, mine) : ""});
  // A value that the plain operator refuses may be on one rank only. Then only
  // some ranks throw.
  if (told.out_of_step() && expected.error.empty()) {
    return Verdict::different("out of step: " + told.text());
  }
  if (!told.error().empty()) {
    return judge(told.error(), expected.error, may_refuse);
  }
  if (!expected.error.empty()) {
    return Verdict::different("does not throw: " + expected.error);
  }
  if (!told.backward_error().empty()) {
    auto verdict = judge(told.backward_error(), "", may_refuse);
    verdict.why = "backward " + verdict.why;
    return verdict;
  }
  if (!told.difference().empty()) {
    return Verdict::different(told.difference());
  }
  const auto values = meeting.tell({"", "", values_of(trial, mode, mine)});
  return Verdict::of_difference(values.difference());
}

// Describes the place of the call in the order of calls.
std::string
name_in_order(const Trial& trial, const Trial* before, const Trial* one) {
  const auto twin =
      one == &trial ? "" : "twin " + arguments_of(one->call) + " ";
  return before == nullptr ? twin
      : before == one      ? twin + "again, "
                      : twin + "after " + arguments_of(before->call) + ", ";
}

} // namespace

Verdict try_combination(
    const Trial& trial,
    const DeviceMesh& mesh,
    const Combination& combination,
    bool backwards,
    Meeting& meeting) {
  const auto placed = place(trial.truth, mesh, combination);
  const bool may_refuse =
      !is_replicated(combination) || is_random(trial.call.op);
  Verdict worst;
  for (const auto mode : {Mode::kNoGrad, Mode::kGrad}) {
    if (mode == Mode::kGrad && !trial.truth.differentiable) {
      break;
    }
    std::set<const Trial*> refused;
    const Trial* before = nullptr;
    for (const auto* one : order_of(trial, backwards)) {
      if (refused.count(one) != 0) {
        continue;
      }
      auto verdict = attempt(*one, placed, mode, may_refuse, meeting);
      if (verdict.outcome == Outcome::kDifferent) {
        verdict.why = (mode == Mode::kGrad ? "grad: " : "no grad: ") +
            name_in_order(trial, before, one) + verdict.why;
        return verdict;
      }
      if (verdict.outcome == Outcome::kRefused) {
        refused.insert(one);
        worst = one == &trial ? verdict : worst;
      }
      before = one;
    }
  }
  return worst;
}

std::string where_of(
    const Trial& trial,
    const std::vector<int64_t>& mesh_shape,
    const Combination& combination) {
  return c10::str(
      "mesh (",
      c10::Join(", ", mesh_shape),
      ") | ",
      to_string(trial.truth, combination),
      " | ",
      arguments_of(trial.call));
}

} // namespace dtensor::randomized
