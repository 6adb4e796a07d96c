// SPDX-License-Identifier: BSD-3-Clause
// Reasons why a mesh dimension takes one strategy and not another: the
// comparison order of propagate, in words.
#include <dtensor/debug/explain_call_impl.h>

#include <algorithm>
#include <utility>

namespace dtensor::detail {
namespace {

// Criteria for comparing strategies, in order of precedence.
enum class Criterion : uint8_t { kByStanding, kByBytes, kByChanges, kByOrder };

Criterion how_beats(const ScoredStrategy& better, const ScoredStrategy& worse) {
  if (better.standing != worse.standing) {
    return Criterion::kByStanding;
  }
  const bool last = better.standing == Feasibility::kLastResort;
  return !last && better.bytes != worse.bytes ? Criterion::kByBytes
      : better.changes != worse.changes       ? Criterion::kByChanges
                                              : Criterion::kByOrder;
}

std::string why_impossible(Feasibility standing, const std::string& written) {
  switch (standing) {
    case Feasibility::kUnreachable:
      return "cannot convert one reduction to another";
    case Feasibility::kChangesWritten:
      return "would change " + written + ", which is written";
    case Feasibility::kMixesReductions:
      return "a layout would have two reductions";
    default:
      return "";
  }
}

std::string why_not(const ScoredStrategy& option, const ScoredStrategy& taken) {
  switch (how_beats(taken, option)) {
    case Criterion::kByStanding:
      return "shards fewer elements than ranks";
    case Criterion::kByBytes:
      return "more bytes";
    case Criterion::kByChanges:
      return "same bytes, changes more inputs";
    default:
      return "equal cost, listed later";
  }
}

// Compares with the closest alternative.
std::string why_taken(const Choice& choice, const std::string& written) {
  const auto& taken = choice.options[*choice.taken];
  auto closest = Criterion::kByStanding;
  size_t others = 0;
  for (const auto& option : choice.options) {
    if (&option != &taken && option.may_be_taken()) {
      closest = std::max(closest, how_beats(taken, option));
      ++others;
    }
  }
  if (others == 0) {
    return choice.options.size() == 1 ? "everything replicated: always possible"
        : written.empty()             ? "the only one possible"
                                      : "the only one in which " + written +
            ", which is written, keeps its layout";
  }
  if (closest == Criterion::kByOrder) {
    return "equal cost, listed first";
  }
  if (taken.changes == 0) {
    return "the inputs already have these layouts";
  }
  switch (closest) {
    case Criterion::kByChanges:
      return "fewest bytes, then fewest changed inputs";
    case Criterion::kByBytes:
      return "fewest bytes";
    default:
      return "the only one that gives every rank elements";
  }
}

} // namespace

ExplainedMeshDim explain_choice(
    const Choice& choice,
    const std::string& mesh_dim,
    const std::string& written) {
  ExplainedMeshDim explained{mesh_dim, {}};
  for (size_t i = 0; i < choice.options.size(); ++i) {
    const auto& option = choice.options[i];
    const bool is_taken = choice.taken == i;
    auto why = is_taken         ? why_taken(choice, written)
        : option.may_be_taken() ? why_not(option, choice.options[*choice.taken])
                                : why_impossible(option.standing, written);
    explained.strategies.push_back(
        {option.strategy,
         option.bytes,
         option.changes,
         is_taken,
         std::move(why)});
  }
  return explained;
}

} // namespace dtensor::detail
