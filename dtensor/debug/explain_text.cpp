// SPDX-License-Identifier: BSD-3-Clause
// Text output of explanations.
#include <dtensor/debug/explain.h>

#include <c10/util/StringUtil.h>
#include <dtensor/debug/report_text_impl.h>
#include <dtensor/format_text.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/rule_text.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ostream>
#include <sstream>

namespace dtensor {
namespace {

using detail::aligned;
using detail::TextRow;

std::string bytes_text(double bytes) {
  char text[64];
  const bool is_integer = bytes == std::floor(bytes);
  std::snprintf(text, sizeof(text), "%.*f", is_integer ? 0 : 1, bytes);
  return text;
}

std::string time_text(double microseconds) {
  return std::isinf(microseconds) ? "-" : c10::str(microseconds);
}

std::string layout_text(const Spec& spec) {
  return shape_text(spec.dtype(), spec.sizes()) + " " +
      to_string(spec.placements());
}

// Indents each line of `text` by `by` spaces.
std::string indented(const std::string& text, size_t by) {
  std::istringstream lines(text);
  std::string all;
  for (std::string line; std::getline(lines, line);) {
    all += std::string(line.empty() ? 0 : by, ' ') + line + '\n';
  }
  return all;
}

std::string title(const ExplainedCall& call) {
  auto text = call.name + " on " + call.mesh;
  if (call.count > 1) {
    text += detail::format_text(", {} times", call.count);
  }
  if (call.backward) {
    text += ", backward";
  }
  if (!call.module.empty()) {
    text += ", in module \"" + call.module + "\"";
  }
  return text + ", " + std::string(to_string(call.by));
}

std::string steps_text(const std::vector<Step>& steps) {
  std::string text;
  for (const auto& step : steps) {
    text += (text.empty() ? "" : ", ") + std::string(to_string(step.kind));
  }
  return text;
}

std::string operand_text(const ExplainedOperand& operand) {
  const auto& spec = *operand.spec;
  return operand.is_plain ? shape_text(spec.dtype(), spec.sizes()) + " plain"
                          : layout_text(spec);
}

// Columns for redistributions are omitted if there are none.
std::string operand_table(const std::vector<ExplainedOperand>& operands) {
  const bool any_changes =
      std::ranges::any_of(operands, [](const ExplainedOperand& operand) {
        return operand.becomes != nullptr;
      });
  std::vector<TextRow> rows = {{"operand", "layout", "becomes", "by", "bytes"}};
  for (const auto& operand : operands) {
    rows.push_back(
        {operand.name,
         operand_text(operand),
         operand.becomes ? to_string(operand.becomes->placements()) : "",
         steps_text(operand.steps),
         bytes_text(operand.wire_bytes)});
  }
  for (auto& row : rows) {
    row.resize(any_changes ? row.size() : 2);
  }
  return aligned(rows, 4);
}

// Reasons are in the last column.
std::string strategy_table(const ExplainedMeshDim& dim) {
  std::vector<TextRow> rows = {
      {dim.mesh_dim, "inputs -> results", "us", "changed"}};
  for (const auto& option : dim.strategies) {
    rows.push_back(
        {option.taken ? "*" : "",
         to_string(option.strategy),
         time_text(option.microseconds),
         c10::str(option.changes)});
  }
  std::istringstream lines(aligned(rows, 2));
  std::string text;
  std::string line;
  std::getline(lines, line);
  text += line + '\n';
  for (const auto& option : dim.strategies) {
    std::getline(lines, line);
    text += line + "  " + option.why + '\n';
  }
  return text;
}

// Consecutive equal results, such as those of split, are merged into one line.
std::string results_text(const std::vector<SpecPtr>& results) {
  std::string text;
  for (auto from = results.begin(); from != results.end();) {
    const auto to = std::find_if(from, results.end(), [&](const SpecPtr& spec) {
      return spec != *from;
    });
    const auto many = to - from;
    text += many == 1 ? "result  " : c10::str(many, " results  ");
    text += (*from ? layout_text(**from) : "no DTensor") + "\n";
    from = to;
  }
  return text;
}

std::string total_text(const CommTotal& total) {
  return detail::format_text(
      "{}{}{} bytes sent\n",
      total.count,
      total.count == 1 ? " collective, " : " collectives, ",
      bytes_text(total.wire_bytes));
}

} // namespace

std::string_view to_string(DecidedBy by) {
  switch (by) {
    case DecidedBy::kRule:
      return "by its rule";
    case DecidedBy::kViewRule:
      return "by the view rule";
    case DecidedBy::kKernel:
      return "by its own kernel";
    case DecidedBy::kOperators:
      return "by other operators";
    case DecidedBy::kReplicatedOperands:
      return "replicated on every rank";
    case DecidedBy::kReplicatedFallback:
      return "replicated by on_missing_rule()";
    case DecidedBy::kUnsupported:
      break;
  }
  return "an error";
}

std::string to_string(const ExplainedCall& call) {
  auto text = call.note.empty() ? "" : call.note + "\n";
  text += operand_table(call.operands);
  for (const auto& dim : call.mesh_dims) {
    text += strategy_table(dim);
  }
  text += results_text(call.results);
  if (call.communicated.count > 0) {
    text += total_text(call.communicated);
  }
  for (const auto& inner : call.calls) {
    text += "\n" + to_string(inner);
  }
  return title(call) + "\n" + indented(text, 2);
}

std::string to_string(const ExplainMode& mode) {
  std::string text;
  for (const auto& call : mode.calls()) {
    text += (text.empty() ? "" : "\n") + to_string(call);
  }
  if (const auto& outside = mode.communicated_outside(); outside.count > 0) {
    text += (text.empty() ? "" : "\n") +
        ("outside of operators: " + total_text(outside));
  }
  return text;
}

std::ostream& operator<<(std::ostream& os, const ExplainedCall& c) {
  return os << to_string(c);
}

std::ostream& operator<<(std::ostream& os, const ExplainMode& m) {
  return os << to_string(m);
}

} // namespace dtensor
