// SPDX-License-Identifier: BSD-3-Clause
#include "proof.h"

#include "combinations.h"
#include "on_shards.h"
#include "tests/randomized/harness/arguments.h"
#include "tests/randomized/harness/operands.h"
#include "tests/randomized/op_samples/attempt.h"

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/ranks.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/path/op_info_impl.h>

#include <ATen/ATen.h>
#include <iostream>
#include <set>

namespace dtensor::randomized {
namespace {

constexpr int64_t kRanks = 2;
constexpr int64_t kMostElements = 4096; // of an operand

Trial draw_trial(const std::string& name, uint64_t seed) {
  Random random(seed);
  const auto op = find_operator(name);
  Tensors operands;
  for (const auto& operand : draw_operands(op.schema(), random)) {
    operands.push_back(
        full_operand(operand, static_cast<uint64_t>(random.below(100000))));
    operands.back().set_requires_grad(operands.back().is_floating_point());
  }
  const auto variant = static_cast<uint64_t>(random.below(100000));
  auto trial = trial_alone(
      {op, draw_arguments(op.schema(), operands, variant), false, 0, true});
  trial.truth.differentiable &= trial.truth.grad.error.empty();
  trial.truth.skips_infinite = true;
  return trial;
}

// True for calls whose results are not defined by their operands: indices of
// equal elements, and operands promised to be unique.
bool is_ambiguous(const Trial& trial) {
  const auto name = trial.call.op.schema().name();
  const auto& t = trial.truth.operands.front();
  if (name == "aten::topk") {
    return !t.is_floating_point();
  }
  return name == "aten::isin" && trial.call.arguments[2].toBool();
}

bool is_finite(const at::Tensor& t) {
  return at::isfinite(t).all().item<bool>();
}

// True if the results distinguish right layouts from wrong ones: finite values
// that are not all equal, of operands that are not too large.
bool is_telling(const Trial& trial) {
  if (trial.skip || trial.compared != Compared::kAll ||
      !trial.truth.no_grad.error.empty() || is_ambiguous(trial)) {
    return false;
  }
  bool any = false;
  for (const auto& t : trial.truth.operands) {
    if (t.numel() > kMostElements || t.numel() == 0) {
      return false;
    }
  }
  for (const auto& value : trial.truth.no_grad.values) {
    if (value.defined() && !is_finite(value)) {
      return false;
    }
    any |= value.defined() && value.numel() > 0 &&
        value.ne(value.flatten()[0]).any().item<bool>();
  }
  return any;
}

} // namespace

std::vector<Trial> telling_trials(
    const std::string& op,
    const std::vector<Call>& samples,
    const ProofSettings& settings) {
  const auto count = settings.calls;
  std::vector<Trial> trials;
  const auto add = [&](Trial trial, size_t limit) {
    if (trials.size() < limit && is_telling(trial)) {
      trials.push_back(std::move(trial));
    }
  };
  const auto step = std::max<size_t>(samples.size() / (3 * count), 1);
  for (size_t i = 0; i < samples.size() && trials.size() < count; i += step) {
    add(trial_alone(samples[i]), count);
  }
  const auto limit = trials.size() + count;
  for (uint64_t seed = 1; seed <= 10 * count; ++seed) {
    add(draw_trial(op, seed), limit);
  }
  return trials;
}

namespace {

// Returns the combinations that the rule keeps, or those that it does not keep.
std::vector<Combination>
layouts_of(const Trial& trial, bool kept, const ProofSettings& settings) {
  const detail::OpInfo info(trial.call.op);
  auto all = placements_of(trial.truth, kRanks, settings.combinations);
  std::erase_if(all, [&](const Combination& layout) {
    return (!settings.only_layout.empty() &&
            one_dim(layout) != settings.only_layout) ||
        kept !=
        keeps_layouts(trial.call, trial.truth, *info.rule, layout, kRanks);
  });
  return all;
}

std::string text_of(const Truth& truth, const Combination& combination) {
  std::string text;
  for (size_t i = 0; i < combination.size(); ++i) {
    text += (i == 0 ? "" : " ") +
        (combination[i].empty() ? std::string("plain")
                                : dtensor::to_string(combination[i][0])) +
        "/" + std::to_string(truth.operands[i].dim());
  }
  return text;
}

// False if an operand without influence on the results is not replicated.
bool says_something(
    const Combination& layout,
    const std::vector<bool>& influences) {
  for (size_t i = 0; i < layout.size(); ++i) {
    if (!layout[i].empty() && !layout[i][0].is_replicate() && !influences[i]) {
      return false;
    }
  }
  return true;
}

void try_layouts(
    const Trial& trial,
    const std::vector<Combination>& layouts,
    const ProofSettings& settings,
    Tally& tally) {
  Meeting meeting(kRanks);
  run_ranks(kRanks, [&](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {kRanks});
    for (const auto& layout : layouts) {
      const auto verdict =
          try_combination(trial, mesh, layout, /*backwards=*/false, meeting);
      if (rank != 0) {
        continue;
      }
      tally.add(verdict);
      if (verdict.outcome == Outcome::kDifferent ||
          (settings.verbose && verdict.outcome == Outcome::kRefused)) {
        std::cout << trial.call.name() << " | "
                  << where_of(trial, {kRanks}, layout) << " | " << verdict.why
                  << std::endl;
      }
    }
  });
}

} // namespace

Tally try_kept(
    const std::vector<Trial>& trials,
    const ProofSettings& settings) {
  Tally tally;
  for (const auto& trial : trials) {
    try_layouts(trial, layouts_of(trial, true, settings), settings, tally);
  }
  return tally;
}

Strategies tried_strategies(const Trial& trial, const ProofSettings& settings) {
  const auto& rule = *detail::OpInfo(trial.call.op).rule;
  if (rule.runs_kernel(trial.call.arguments)) {
    return {}; // without a strategy
  }
  Strategies tried;
  for (const auto& layout : layouts_of(trial, true, settings)) {
    std::ranges::copy(
        strategies_with(trial.call, trial.truth, rule, layout, kRanks),
        std::back_inserter(tried));
  }
  return tried;
}

Unlisted try_unlisted(
    const std::vector<Trial>& trials,
    const ProofSettings& settings) {
  Unlisted unlisted;
  std::set<std::string> fails;
  for (const auto& trial : trials) {
    const auto& written = trial.truth.mutated;
    if (std::count(written.begin(), written.end(), true) > 0) {
      continue; // such as running statistics
    }
    const auto influences = influences_of(trial.call, trial.truth);
    for (const auto& layout : layouts_of(trial, false, settings)) {
      if (!says_something(layout, influences)) {
        continue;
      }
      ++unlisted.tried;
      const auto text = text_of(trial.truth, layout);
      if (const auto results =
              placements_on_shards(trial.call, trial.truth, layout, kRanks)) {
        ++unlisted.works[text + " -> " + dtensor::to_string(*results)];
      } else {
        fails.insert(text);
      }
    }
  }
  std::erase_if(unlisted.works, [&](const auto& item) {
    return fails.count(item.first.substr(0, item.first.find(" -> "))) != 0;
  });
  return unlisted;
}

} // namespace dtensor::randomized
