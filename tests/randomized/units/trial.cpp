// SPDX-License-Identifier: BSD-3-Clause
#include "trial.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <c10/util/StringUtil.h>
#include <dtensor/comm/init_device_mesh.h>

#include "run.h"

namespace dtensor::units {
namespace {

std::string difference(
    const Record& mine,
    const Record& truth,
    const Plan& plan,
    int64_t index) {
  if (mine.what != truth.what) {
    return c10::str(mine.what, " instead of ", truth.what);
  }
  if (mine.value.defined() != truth.value.defined()) {
    return mine.what + (mine.value.defined() ? " is there" : " is missing");
  }
  if (!mine.value.defined()) {
    return "";
  }
  const auto expected = truth.is_rows
      ? truth.value.narrow(0, plan.rows * index, plan.rows)
      : truth.value;
  if (mine.value.sizes() != expected.sizes()) {
    return c10::str(
        mine.what,
        " has shape ",
        mine.value.sizes(),
        ", not ",
        expected.sizes());
  }
  const bool is_float = mine.what == "in float" || plan.in_float;
  const auto tolerance = is_float ? 2e-3 : 1e-9;
  const bool is_close = at::allclose(
      mine.value.to(at::kDouble),
      expected.to(at::kDouble),
      tolerance,
      tolerance);
  return is_close ? ""
                  : c10::str(
                        mine.what,
                        " differs by ",
                        (mine.value - expected).abs().max().item<double>());
}

std::string compare(
    const std::vector<Record>& mine,
    const std::vector<Record>& truth,
    const Plan& plan,
    int64_t index) {
  for (size_t i = 0; i < std::min(mine.size(), truth.size()); ++i) {
    const auto why = difference(mine[i], truth[i], plan, index);
    if (!why.empty()) {
      return c10::str(why, " (record ", i, ")");
    }
  }
  return mine.size() == truth.size() ? "" : "another number of records";
}

} // namespace

randomized::Verdict try_plan(const Plan& plan) {
  std::vector<Record> truth;
  try {
    truth = run(plan, nullptr);
  } catch (const std::exception& e) {
    return randomized::Verdict::skipped(randomized::first_line(e.what()));
  }
  return randomized::try_on_ranks(plan.ranks(), [&](int64_t) {
    const auto mesh = init_device_mesh(at::kCPU, plan.mesh, plan.names);
    return compare(run(plan, &mesh), truth, plan, data_index(plan, mesh));
  });
}

std::string shrink(Plan plan) {
  for (bool again = true; again;) {
    again = false;
    for (const auto& less : smaller(plan)) {
      if (try_plan(less).outcome == randomized::Outcome::kDifferent) {
        plan = less;
        again = true;
        break;
      }
    }
  }
  return plan.text() + "  " + try_plan(plan).why;
}

} // namespace dtensor::units
