// SPDX-License-Identifier: BSD-3-Clause
// Plans as text: one line for each pattern and its style.
//
//   # Llama
//   model.layers.*.self_attn.q_proj  colwise multiple_of=64
//   model.layers.*.self_attn.o_proj  rowwise multiple_of=64
//   model.norm                       sequence
#pragma once

#include <dtensor/api.h>
#include <dtensor/parallel/style.h>

#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace dtensor {

/// A pattern and the text of its style. The text is "colwise", "rowwise" or
/// "sequence", followed by the options that differ from the defaults, each
/// after a space. "colwise" and "rowwise" have multiple_of=n and output=S(1) (a
/// placement as in layout/text.h), "colwise" also fused_projections=n, and
/// "sequence" has dim=n.
struct PlanEntryText {
  std::string pattern;
  std::string style;
  friend bool operator==(const PlanEntryText&, const PlanEntryText&) = default;
};

/// Parses one entry per line; text after a # is a comment. Throws ValueError,
/// which names the line, for a text that is not a style.
DTENSOR_API std::vector<PlanEntryText> parse_plan(std::string_view text);

/// Returns the plan that the lines describe. Throws ValueError for a text that
/// is not a style.
DTENSOR_API ParallelizePlan make_plan(const std::vector<PlanEntryText>& lines);

/// Returns the lines as one text in the format that parse_plan() reads.
DTENSOR_API std::string to_string(const std::vector<PlanEntryText>& lines);

/// Writes to_string(lines). For a plan without lines, writes that no weight is
/// sharded.
DTENSOR_API std::ostream& operator<<(
    std::ostream& os,
    const std::vector<PlanEntryText>& lines);

} // namespace dtensor
