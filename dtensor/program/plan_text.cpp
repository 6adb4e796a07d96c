// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/plan_text.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/linear_styles.h>
#include <dtensor/parallel/sequence_parallel.h>
#include <dtensor/shortened_impl.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <sstream>

namespace dtensor {
namespace {

// A parsed style, such as "colwise multiple_of=64": a name, and numbers and
// layouts by option name.
struct StyleWords {
  std::string style;
  std::map<std::string, std::string> options;
};

[[noreturn]] void refuse(const PlanEntryText& line, const std::string& why) {
  DTENSOR_THROW_VALUE(
      "[parse_plan] \"{} {}\": {}. Styles: colwise (multiple_of=n, "
      "fused_projections=n, output=S(1)), rowwise (multiple_of=n, "
      "output=S(1)), sequence (dim=n).",
      detail::shortened(line.pattern),
      detail::shortened(line.style),
      why);
}

// Splits at blanks. A layout may contain a blank: "output=S(0, u=4)".
std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  int depth = 0;
  for (const char c : text + ' ') {
    depth += (c == '(') - (c == ')');
    if ((c != ' ' && c != '\t') || depth > 0) {
      word += c;
    } else if (!word.empty()) {
      words.push_back(std::exchange(word, ""));
    }
  }
  return words;
}

StyleWords words_of(const PlanEntryText& line) {
  StyleWords words;
  for (const auto& word : split(line.style)) {
    const auto equals = word.find('=');
    if (words.style.empty()) {
      words.style = word;
    } else if (equals == std::string::npos) {
      refuse(
          line,
          "\"" + detail::shortened(word) + "\" is not an option of this style");
    } else if (!words.options
                    .emplace(word.substr(0, equals), word.substr(equals + 1))
                    .second) {
      refuse(
          line, detail::shortened(word.substr(0, equals)) + " is given twice");
    }
  }
  return words;
}

// Removes the option and returns its value.
std::optional<std::string> taken(StyleWords& words, const std::string& name) {
  const auto found = words.options.find(name);
  if (found == words.options.end()) {
    return std::nullopt;
  }
  auto value = std::move(found->second);
  words.options.erase(found);
  return value;
}

int64_t number(
    const PlanEntryText& line,
    StyleWords& words,
    const std::string& name,
    int64_t otherwise) {
  const auto text = taken(words, name);
  if (!text) {
    return otherwise;
  }
  int64_t value = 0;
  const auto* end = text->data() + text->size();
  const auto [last, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc() || last != end) {
    refuse(line, name + " is not a number");
  }
  return value;
}

// Returns a number of features or projections, which is 1 without the option.
int64_t
count(const PlanEntryText& line, StyleWords& words, const std::string& name) {
  const auto value = number(line, words, name, 1);
  if (value < 1) {
    refuse(line, name + " must be positive");
  }
  return value;
}

Placement placement(
    const PlanEntryText& line,
    StyleWords& words,
    const Placement& otherwise) {
  const auto text = taken(words, "output");
  if (!text) {
    return otherwise;
  }
  const auto placements = parse_placements(*text);
  if (placements.size() != 1) {
    refuse(line, "output must be a single placement");
  }
  return placements[0];
}

ParallelizePlanEntry entry_of(const PlanEntryText& line) {
  auto words = words_of(line);
  std::shared_ptr<const ParallelStyle> style;
  if (words.style == "colwise") {
    style = std::make_shared<ColwiseParallel>(ColwiseOptions{
        .output_layouts = placement(line, words, Shard(-1)),
        .multiple_of = count(line, words, "multiple_of"),
        .fused_projections = count(line, words, "fused_projections")});
  } else if (words.style == "rowwise") {
    style = std::make_shared<RowwiseParallel>(RowwiseOptions{
        .output_layouts = placement(line, words, Replicate()),
        .multiple_of = count(line, words, "multiple_of")});
  } else if (words.style == "sequence") {
    style = std::make_shared<SequenceParallel>(
        SequenceParallelOptions{.sequence_dim = number(line, words, "dim", 1)});
  } else {
    refuse(line, "unknown style \"" + detail::shortened(words.style) + "\"");
  }
  if (!words.options.empty()) {
    refuse(
        line,
        words.style + " has no option " +
            detail::shortened(words.options.begin()->first));
  }
  return {line.pattern, std::move(style)};
}

} // namespace

std::vector<PlanEntryText> parse_plan(std::string_view text) {
  DTENSOR_CHECK_VALUE(
      text.find('\0') == std::string_view::npos,
      "[parse_plan] the text contains a zero byte at position {}. Remove it.",
      text.find('\0'));
  std::vector<PlanEntryText> lines;
  std::istringstream all{std::string(text)};
  for (std::string line; std::getline(all, line);) {
    const auto words = split(line.substr(0, line.find('#')));
    if (words.empty()) {
      continue;
    }
    PlanEntryText entry{words[0], ""};
    for (size_t i = 1; i < words.size(); ++i) {
      entry.style += (i == 1 ? "" : " ") + words[i];
    }
    entry_of(entry); // throws if there is no such style
    lines.push_back(std::move(entry));
  }
  return lines;
}

ParallelizePlan make_plan(const std::vector<PlanEntryText>& lines) {
  ParallelizePlan plan;
  for (const auto& line : lines) {
    plan.push_back(entry_of(line));
  }
  return plan;
}

// Patterns longer than the column do not widen the column, so that the text
// stays in proportion to the lines.
std::string to_string(const std::vector<PlanEntryText>& lines) {
  constexpr size_t kWidest = 80;
  if (lines.empty()) {
    return "# no styles: no weight is sharded\n";
  }
  size_t width = 0;
  for (const auto& line : lines) {
    width = std::max(width, std::min(line.pattern.size(), kWidest));
  }
  std::string text;
  for (const auto& line : lines) {
    const auto blanks = width - std::min(line.pattern.size(), width) + 2;
    text += line.pattern + std::string(blanks, ' ') + line.style + "\n";
  }
  return text;
}

std::ostream& operator<<(
    std::ostream& os,
    const std::vector<PlanEntryText>& lines) {
  return os << to_string(lines);
}

} // namespace dtensor
