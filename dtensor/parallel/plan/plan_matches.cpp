// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/plan/plan_matches_impl.h>

#include <dtensor/error.h>
#include <dtensor/parallel/plan/module_names_impl.h>

#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>

#include <utility>

namespace dtensor::detail {
namespace {

std::vector<std::string> split_at_dots(const std::string& pattern) {
  std::vector<std::string> parts(1);
  for (const char c : pattern) {
    if (c == '.') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

} // namespace

const PlanMatches::Children& PlanMatches::children_of(
    torch::nn::Module& module) {
  const auto [known, is_new] = children_.try_emplace(&module);
  if (is_new) {
    known->second = module.named_children();
  }
  return known->second;
}

void PlanMatches::add_children(
    std::vector<Match>& found,
    const Match& parent,
    const std::string& token) {
  const auto add = [&](const std::string& name, const auto& child) {
    found.push_back({child, child.get(), full_name(parent.name, name)});
  };
  const auto& children = children_of(*parent.module);
  if (!has_wildcards(token)) {
    ++compared_;
    if (const auto* child = children.find(token)) {
      add(token, *child);
    }
    return;
  }
  for (const auto& child : children) {
    ++compared_;
    if (matches_glob(token, child.key())) {
      add(child.key(), child.value());
    }
  }
}

// Matches level by level. For the error, remembers the names at the deepest
// level where a module has no matching child.
std::vector<Match> PlanMatches::find(const std::string& pattern) {
  std::vector<Match> level = {{nullptr, &root_, ""}};
  if (pattern.empty()) {
    return level;
  }
  Miss miss;
  const auto tokens = split_at_dots(pattern);
  for (size_t depth = 0; depth < tokens.size(); ++depth) {
    std::vector<Match> next;
    for (const auto& parent : level) {
      const auto before = next.size();
      add_children(next, parent, tokens[depth]);
      if (next.size() == before && (miss.names.empty() || depth > miss.depth)) {
        miss = {depth, children_of(*parent.module).keys()};
      }
    }
    level = std::move(next);
  }
  DTENSOR_CHECK_VALUE(
      !level.empty(),
      "[parallelize_module] no submodule matches \"{}\". {}.",
      pattern,
      miss.names.empty()
          ? "There are no names at that level"
          : "Names at that level: " + c10::Join(", ", miss.names));
  return level;
}

} // namespace dtensor::detail
