// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/plan/module_names_impl.h>

#include <dtensor/error.h>

#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>

#include <utility>

namespace dtensor::detail {
namespace {

// "*", "?", a character, or the inside of a bracket set.
struct Token {
  std::string_view text;
  bool is_set = false;
};

// Returns the end of the set that starts after '[' at `begin`, or npos if it is
// unterminated.
size_t end_of_set(std::string_view pattern, size_t begin) {
  const bool negated = begin < pattern.size() && pattern[begin] == '!';
  return pattern.find(']', begin + (negated ? 2 : 1)); // "[]a]" contains ']'
}

// Splits a pattern into tokens. An unterminated '[' is a plain character. Later
// sets cannot be terminated either, which keeps the scan linear.
std::vector<Token> tokens_of(std::string_view pattern) {
  std::vector<Token> tokens;
  bool any_set_ends = true;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const auto end = pattern[i] == '[' && any_set_ends
        ? end_of_set(pattern, i + 1)
        : std::string_view::npos;
    if (end != std::string_view::npos) {
      tokens.push_back({pattern.substr(i + 1, end - i - 1), true});
      i = end;
      continue;
    }
    any_set_ends = any_set_ends && pattern[i] != '[';
    tokens.push_back({pattern.substr(i, 1)});
  }
  return tokens;
}

// True if `c` is in a set such as "a-z_" or "!0-9".
bool in_set(std::string_view set, char c) {
  const bool negated = set.front() == '!';
  set.remove_prefix(negated ? 1 : 0);
  bool found = false;
  for (size_t i = 0; i < set.size(); ++i) {
    const bool range = i + 2 < set.size() && set[i + 1] == '-';
    found |= range ? set[i] <= c && c <= set[i + 2] : set[i] == c;
    i += range ? 2 : 0;
  }
  return found != negated;
}

bool takes_any_text(const Token& token) {
  return !token.is_set && token.text == "*";
}

bool takes(const Token& token, char c) {
  return token.is_set ? in_set(token.text, c)
                      : token.text[0] == '?' || token.text[0] == c;
}

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

// Backtracks only to the last star. If an earlier star matched more text, later
// stars would match less of the same text. The time is therefore at most the
// product of the lengths.
bool matches_glob(std::string_view pattern, std::string_view name) {
  const auto tokens = tokens_of(pattern);
  size_t token = 0;
  size_t at = 0;
  size_t after_star = 0; // 0: none
  size_t taken = 0;      // end of the text that the star matches
  while (at < name.size()) {
    if (token < tokens.size() && takes_any_text(tokens[token])) {
      after_star = ++token;
      taken = at;
    } else if (token < tokens.size() && takes(tokens[token], name[at])) {
      ++token;
      ++at;
    } else if (after_star > 0) {
      token = after_star;
      at = ++taken;
    } else {
      return false;
    }
  }
  while (token < tokens.size() && takes_any_text(tokens[token])) {
    ++token;
  }
  return token == tokens.size();
}

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
  if (token.find_first_of("*?[") == token.npos) { // a plain name
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
  std::vector<std::string> names;
  for (const auto& token : split_at_dots(pattern)) {
    std::vector<Match> next;
    bool is_first_miss = true;
    for (const auto& parent : level) {
      const auto before = next.size();
      add_children(next, parent, token);
      if (next.size() == before && (names.empty() || is_first_miss)) {
        names = children_of(*parent.module).keys();
        is_first_miss = false;
      }
    }
    level = std::move(next);
  }
  DTENSOR_CHECK_VALUE(
      !level.empty(),
      "[parallelize_module] no submodule matches \"{}\". {}.",
      pattern,
      names.empty() ? "There are no names at that level"
                    : "Names at that level: " + c10::Join(", ", names));
  return level;
}

} // namespace dtensor::detail
