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

// Reads a line's style, such as "colwise multiple_of=64": a name, and numbers
// and layouts by option name.
class StyleReader {
 public:
  explicit StyleReader(const PlanEntryText& line) : line_(line) {
    for (const auto& word : split(line.style)) {
      const auto equals = word.find('=');
      const auto option = detail::shortened(word.substr(0, equals));
      if (name_.empty()) {
        name_ = word;
      } else if (equals == std::string::npos) {
        refuse("\"" + option + "\" is not an option of this style");
      } else if (!options_
                      .emplace(word.substr(0, equals), word.substr(equals + 1))
                      .second) {
        refuse(option + " is given twice");
      }
    }
  }

  ParallelizePlanEntry entry() {
    auto style = read_style();
    if (!options_.empty()) {
      refuse(
          name_ + " has no option " +
          detail::shortened(options_.begin()->first));
    }
    return {line_.pattern, std::move(style)};
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    DTENSOR_THROW_VALUE(
        "[parse_plan] \"{} {}\": {}. Styles: colwise (multiple_of=n, "
        "fused_projections=n, output=S(1)), rowwise (multiple_of=n, "
        "output=S(1)), sequence (dim=n).",
        detail::shortened(line_.pattern),
        detail::shortened(line_.style),
        why);
  }

  std::shared_ptr<const ParallelStyle> read_style() {
    if (name_ == "colwise") {
      return std::make_shared<ColwiseParallel>(ColwiseOptions{
          .output_layouts = take_output(Shard(-1)),
          .multiple_of = take_count("multiple_of"),
          .fused_projections = take_count("fused_projections")});
    }
    if (name_ == "rowwise") {
      return std::make_shared<RowwiseParallel>(RowwiseOptions{
          .output_layouts = take_output(Replicate()),
          .multiple_of = take_count("multiple_of")});
    }
    if (name_ == "sequence") {
      return std::make_shared<SequenceParallel>(
          SequenceParallelOptions{.sequence_dim = take_number("dim")});
    }
    refuse("unknown style \"" + detail::shortened(name_) + "\"");
  }

  // Removes the option and returns its value.
  std::optional<std::string> take(const std::string& name) {
    const auto option = options_.extract(name);
    return option.empty() ? std::nullopt : std::optional(option.mapped());
  }

  // Returns a number, which is 1 without the option.
  int64_t take_number(const std::string& name) {
    const auto text = take(name).value_or("1");
    int64_t value = 0;
    const auto* end = text.data() + text.size();
    const auto [last, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || last != end) {
      refuse(name + " is not a number");
    }
    return value;
  }

  // Returns a number of features or projections.
  int64_t take_count(const std::string& name) {
    const auto value = take_number(name);
    if (value < 1) {
      refuse(name + " must be positive");
    }
    return value;
  }

  Placement take_output(const Placement& otherwise) {
    const auto text = take("output");
    if (!text) {
      return otherwise;
    }
    const auto placements = parse_placements(*text);
    if (placements.size() != 1) {
      refuse("output must be a single placement");
    }
    return placements[0];
  }

  const PlanEntryText& line_;
  std::string name_;
  std::map<std::string, std::string> options_;
};

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
    StyleReader(entry).entry(); // throws if there is no such style
    lines.push_back(std::move(entry));
  }
  return lines;
}

ParallelizePlan make_plan(const std::vector<PlanEntryText>& lines) {
  ParallelizePlan plan;
  for (const auto& line : lines) {
    plan.push_back(StyleReader(line).entry());
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
