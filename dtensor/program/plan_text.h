// SPDX-License-Identifier: BSD-3-Clause
// Plans as text: a line for each pattern and its style.
//
//   # of a Llama
//   model.layers.*.self_attn.q_proj  colwise unit=64
//   model.layers.*.self_attn.o_proj  rowwise unit=64
//   model.norm                       sequence
#pragma once

#include <dtensor/api.h>
#include <dtensor/parallel/style.h>

#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

namespace dtensor {

/// A pattern and what its style is called: "colwise", "rowwise", with " unit=n"
/// and " output=S(1)" (a placement as layout/text.h writes it) where they
/// differ from the defaults, and " pieces=n" of the first; "sequence", with
/// " dim=n".
struct PlanLine {
  std::string pattern;
  std::string style;
  friend bool operator==(const PlanLine&, const PlanLine&) = default;
};

/// Reads one line each; what follows a # is a remark. Throws ValueError with
/// the line for what is no style.
DTENSOR_API std::vector<PlanLine> parse_plan(std::string_view text);

/// The styles that the lines name. Throws ValueError for what is no style.
DTENSOR_API ParallelizePlan make_plan(const std::vector<PlanLine>& lines);

/// The lines, one below the other, as parse_plan() reads them.
DTENSOR_API std::string to_string(const std::vector<PlanLine>& lines);

/// Writes to_string(lines), which of a plan without lines says that all weights
/// stay whole.
DTENSOR_API std::ostream& operator<<(
    std::ostream& os,
    const std::vector<PlanLine>& lines);

} // namespace dtensor
