// SPDX-License-Identifier: BSD-3-Clause
#include "plan.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>

namespace dtensor::units {
namespace {

const char* name_of(Kind kind) {
  static const char* const names[] = {
      "linear",
      "mlp",
      "norm",
      "sequence",
      "conv",
      "gain",
      "number",
      "embedding",
      "tied",
      "views",
      "alone",
      "recurrent",
      "attention",
      "group"};
  return names[static_cast<size_t>(kind)];
}

std::string text_of(const BlockPlan& block) {
  auto text = c10::str(name_of(block.kind), "(", block.hidden);
  const auto add = [&](bool is, const char* what) {
    text += is ? c10::str(", ", what) : "";
  };
  add(block.is_hooked, "hooked");
  add(block.is_parallel, "parallel");
  add(block.is_unit, "unit");
  if (block.reshards) {
    text += c10::str(", reshards ", *block.reshards);
  }
  add(block.cuts_last, "cuts last");
  if (block.frozen >= 0) {
    text += c10::str(", frozen ", block.frozen);
  }
  add(block.shares, "shares");
  if (block.calls != 1) {
    text += c10::str(", calls ", block.calls);
  }
  add(block.recomputes, "recomputes");
  add(block.is_lost, "lost");
  for (const auto& inner : block.inner) {
    text += "; " + text_of(inner);
  }
  return text + ")";
}

std::string text_of(const StepPlan& step) {
  auto text = c10::str("{parts ", step.parts);
  const auto add = [&](bool is, const std::string& what) {
    text += is ? ", " + what : "";
  };
  add(step.skipped >= 0, c10::str("skips ", step.skipped));
  add(step.thrown >= 0, c10::str("throws ", step.thrown));
  add(step.evaluations > 0, c10::str("evaluates ", step.evaluations));
  add(step.syncs_each, "syncs each");
  add(step.is_repeated, "repeated");
  add(step.unshards, "unshards");
  add(step.clips, "clips");
  add(!step.sets_to_none, "zeros");
  add(step.casts, "casts");
  add(step.asks, "asks");
  add(step.joins, "joins");
  return text + "}";
}

BlockPlan draw_block(Random& random, bool has_tp, int depth) {
  BlockPlan block;
  const auto kinds = static_cast<int64_t>(Kind::kGroup) + (depth < 2 ? 1 : 0);
  block.kind = static_cast<Kind>(random.below(kinds));
  block.hidden = 1 + random.below(9);
  block.is_hooked = random.chance(40) || block.kind == Kind::kAlone;
  block.is_parallel = has_tp && block.kind == Kind::kMlp && random.chance(70);
  block.is_unit = random.chance(60) || block.kind == Kind::kAlone;
  if (random.chance(50)) {
    block.reshards = random.below(3);
  }
  block.cuts_last = random.chance(20);
  block.frozen = random.chance(15) ? random.below(3) : -1;
  block.shares = random.chance(20);
  block.calls = random.chance(15) ? 2 : 1;
  block.recomputes = random.chance(15);
  block.is_lost = random.chance(7);
  if (block.kind == Kind::kGroup) {
    for (auto i = 1 + random.below(3); i > 0; --i) {
      block.inner.push_back(draw_block(random, has_tp, depth + 1));
    }
  }
  return block;
}

StepPlan draw_step(Random& random, int64_t blocks) {
  StepPlan step;
  step.skipped = random.chance(25) ? random.below(blocks) : -1;
  step.thrown = random.chance(15) ? random.below(blocks) : -1;
  step.evaluations = random.chance(30) ? 1 + random.below(2) : 0;
  step.parts = random.chance(30) ? 2 + random.below(2) : 1;
  step.syncs_each = random.chance(50);
  step.is_repeated = random.chance(15);
  step.unshards = random.chance(15);
  step.clips = random.chance(25);
  step.sets_to_none = random.chance(70);
  step.casts = random.chance(10);
  step.asks = random.chance(10);
  step.joins = random.chance(10);
  return step;
}

void draw_mesh(Plan& plan, Random& random) {
  switch (random.below(16)) {
    case 0:
      plan.mesh = {1};
      plan.names = {"shard"};
      break;
    case 1:
    case 2:
      plan.mesh = {2};
      plan.names = {"shard"};
      break;
    case 3:
      plan.mesh = {3};
      plan.names = {"shard"};
      break;
    case 4:
      plan.mesh = {4};
      plan.names = {"shard"};
      break;
    case 5:
    case 6:
      plan.mesh = {2, 2};
      plan.names = {"repeat", "shard"};
      break;
    case 7:
      plan.mesh = {2, 2, 2};
      plan.names = {"repeat", "shard", "tp"};
      break;
    case 8:
    case 9:
      plan.mesh = {2};
      plan.names = {"shard"};
      break;
    case 10:
      plan.mesh = {3};
      plan.names = {"shard"};
      break;
    default:
      plan.mesh = {2, 2};
      plan.names = {"shard", "tp"};
  }
}

// Calls fn(block) for all blocks, outer ones first.
template <class Fn>
void for_each_block(std::vector<BlockPlan>& blocks, const Fn& fn) {
  for (auto& block : blocks) {
    fn(block);
    for_each_block(block.inner, fn);
  }
}

// Adds the plans that lack one block, at any depth.
void without_a_block(
    const Plan& plan,
    const std::vector<size_t>& path,
    std::vector<Plan>& all) {
  const auto blocks_at = [&](Plan& p) {
    auto* blocks = &p.blocks;
    for (const auto i : path) {
      blocks = &(*blocks)[i].inner;
    }
    return blocks;
  };
  auto copy = plan;
  const auto count = blocks_at(copy)->size();
  for (size_t i = 0; i < count; ++i) {
    auto less = plan;
    auto& blocks = *blocks_at(less);
    blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i));
    if (!less.blocks.empty()) {
      all.push_back(std::move(less));
    }
    auto deeper = path;
    deeper.push_back(i);
    without_a_block(plan, deeper, all);
  }
}

// Adds the plans in which one of `owners`, members of `changed`, has the given
// value.
template <class Owner, class Value>
void with(
    const std::vector<Owner*>& owners,
    Plan& changed,
    Value Owner::*member,
    const Value& value,
    std::vector<Plan>& all) {
  for (auto* owner : owners) {
    if (owner->*member != value) {
      const auto before = std::exchange(owner->*member, value);
      all.push_back(changed);
      owner->*member = before;
    }
  }
}

} // namespace

bool Plan::has(const std::string& name) const {
  return std::find(names.begin(), names.end(), name) != names.end();
}

int64_t Plan::ranks() const {
  int64_t all = 1;
  for (const auto size : mesh) {
    all *= size;
  }
  return all;
}

int64_t Plan::data_ranks() const {
  return has("tp") ? ranks() / mesh.back() : ranks();
}

std::string Plan::text() const {
  auto text = c10::str(
      "--seed ",
      seed,
      ": (",
      c10::Join(", ", mesh),
      ") ",
      c10::Join(", ", names),
      replicates ? c10::str(", replicates ", bucket_bytes) : "",
      root_is_unit ? ", root unit" : "",
      root_is_hooked ? ", root hooked" : "",
      in_float ? ", in float" : "",
      keeps_after_backward ? ", keeps after backward" : "",
      prefetched >= 0 ? c10::str(", prefetches ", prefetched) : "",
      ", width ",
      width,
      ", rows ",
      rows,
      ", optimizer ",
      optimizer,
      ", plain steps ",
      plain_steps,
      "\n");
  for (const auto& block : blocks) {
    text += "  " + text_of(block) + "\n";
  }
  for (const auto& step : steps) {
    text += "  " + text_of(step) + "\n";
  }
  return text;
}

Plan draw_plan(uint64_t seed) {
  Random random(seed);
  Plan plan;
  plan.seed = seed;
  draw_mesh(plan, random);
  plan.replicates = random.chance(15) && !plan.has("repeat");
  plan.bucket_bytes = random.chance(50) ? 1 : 300;
  plan.root_is_unit = random.chance(80);
  plan.root_is_hooked = random.chance(40);
  plan.in_float = random.chance(10);
  plan.keeps_after_backward = random.chance(10);
  plan.width = 2 * (1 + random.below(3));
  plan.rows = 1 + random.below(3);
  plan.optimizer = random.below(5);
  plan.plain_steps = random.chance(30) ? 1 + random.below(2) : 0;
  for (auto i = 1 + random.below(5); i > 0; --i) {
    plan.blocks.push_back(draw_block(random, plan.has("tp"), 0));
  }
  const auto blocks = static_cast<int64_t>(plan.blocks.size());
  plan.prefetched = random.chance(20) ? random.below(blocks) : -1;
  for (auto i = 2 + random.below(3); i > 0; --i) {
    plan.steps.push_back(draw_step(random, blocks));
  }
  return plan;
}

std::vector<Plan> smaller(const Plan& plan) {
  std::vector<Plan> all;
  without_a_block(plan, {}, all);
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    auto less = plan;
    less.steps.erase(less.steps.begin() + static_cast<std::ptrdiff_t>(i));
    all.push_back(std::move(less));
  }
  auto changed = plan;
  std::vector<StepPlan*> steps;
  for (auto& step : changed.steps) {
    steps.push_back(&step);
  }
  const auto of_steps = [&](auto member, auto value) {
    with(steps, changed, member, value, all);
  };
  of_steps(&StepPlan::skipped, int64_t{-1});
  of_steps(&StepPlan::thrown, int64_t{-1});
  of_steps(&StepPlan::evaluations, int64_t{0});
  of_steps(&StepPlan::parts, int64_t{1});
  of_steps(&StepPlan::syncs_each, true);
  of_steps(&StepPlan::is_repeated, false);
  of_steps(&StepPlan::unshards, false);
  of_steps(&StepPlan::clips, false);
  of_steps(&StepPlan::sets_to_none, true);
  of_steps(&StepPlan::casts, false);
  of_steps(&StepPlan::asks, false);
  of_steps(&StepPlan::joins, false);
  std::vector<BlockPlan*> blocks;
  for_each_block(changed.blocks, [&](BlockPlan& b) { blocks.push_back(&b); });
  const auto of_blocks = [&](auto member, auto value) {
    with(blocks, changed, member, value, all);
  };
  of_blocks(&BlockPlan::hidden, int64_t{1});
  of_blocks(&BlockPlan::is_parallel, false);
  of_blocks(&BlockPlan::is_unit, false);
  of_blocks(&BlockPlan::reshards, std::optional<int64_t>());
  of_blocks(&BlockPlan::cuts_last, false);
  of_blocks(&BlockPlan::frozen, int64_t{-1});
  of_blocks(&BlockPlan::shares, false);
  of_blocks(&BlockPlan::calls, int64_t{1});
  of_blocks(&BlockPlan::recomputes, false);
  of_blocks(&BlockPlan::is_lost, false);
  const auto of_plan = [&](auto member, auto value) {
    with(std::vector<Plan*>{&changed}, changed, member, value, all);
  };
  of_plan(&Plan::root_is_hooked, false);
  of_plan(&Plan::in_float, false);
  of_plan(&Plan::keeps_after_backward, false);
  of_plan(&Plan::prefetched, int64_t{-1});
  of_plan(&Plan::width, int64_t{2});
  of_plan(&Plan::rows, int64_t{1});
  of_plan(&Plan::optimizer, int64_t{0});
  of_plan(&Plan::plain_steps, int64_t{0});
  if (plan.mesh.size() == 1 && plan.mesh[0] > 2) {
    all.push_back(plan);
    all.back().mesh = {2};
  }
  return all;
}

} // namespace dtensor::units
