// SPDX-License-Identifier: BSD-3-Clause
#include "trial.h"

#include <ATen/ops/allclose.h>
#include <c10/util/StringUtil.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/ranks.h>

#include <mutex>
#include <regex>

#include "run.h"

namespace dtensor::units {
namespace {

std::string first_line(const std::exception& e) {
  const std::string text = e.what();
  return text.substr(0, text.find('\n'));
}

// Returns the "where" of the single error with which all ranks failed, if it is
// ours; "" otherwise.
std::string refusal(const std::string& error) {
  static const std::regex failed(
      "\\[run_ranks\\] .* ranks? failed\\. "
      "(?:every rank|ranks? [0-9, ]+): \\[([A-Za-z_][^\\]]*)\\].*");
  static const std::regex another("; ranks? [0-9, ]+: ");
  std::smatch found;
  const bool ours = std::regex_match(error, found, failed) &&
      !std::regex_search(error, another) &&
      error.find("INTERNAL ASSERT") == std::string::npos;
  return ours ? found[1].str() : "";
}

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

Verdict try_plan(const Plan& plan) {
  std::vector<Record> truth;
  try {
    truth = run(plan, nullptr);
  } catch (const std::exception& e) {
    return {Outcome::kSkipped, "", first_line(e)};
  }
  std::mutex mutex;
  std::string wrong;
  RunRanksOptions options;
  options.timeout = std::chrono::seconds(60);
  const auto on_rank = [&](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, plan.mesh, plan.names);
    const auto why =
        compare(run(plan, &mesh), truth, plan, data_index(plan, mesh));
    if (!why.empty()) {
      const std::lock_guard lock(mutex);
      wrong = c10::str(why, " on rank ", rank);
    }
  };
  try {
    run_ranks(plan.ranks(), on_rank, options);
  } catch (const std::exception& e) {
    const auto line = first_line(e);
    const auto where = refusal(line);
    return {
        where.empty() ? Outcome::kDifferent : Outcome::kRefused, where, line};
  }
  return {wrong.empty() ? Outcome::kEqual : Outcome::kDifferent, "", wrong};
}

Plan shrink(Plan plan) {
  for (bool again = true; again;) {
    again = false;
    for (const auto& less : smaller(plan)) {
      if (try_plan(less).outcome == Outcome::kDifferent) {
        plan = less;
        again = true;
        break;
      }
    }
  }
  return plan;
}

} // namespace dtensor::units
