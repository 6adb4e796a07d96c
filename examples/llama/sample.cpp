// SPDX-License-Identifier: BSD-3-Clause
#include "sample.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

namespace llama {
namespace {

using dtensor::DTensor;
using torch::Tensor;

constexpr int64_t kMost = 64; // candidates per rank

// Tokens that may be chosen, the most probable first.
struct Candidates {
  Tensor probabilities; // (B, n)
  Tensor tokens;        // (B, n)
  Tensor complete;      // (B, n): no more probable token is missing
};

Candidates sorted(const Tensor& probabilities, const Tensor& tokens) {
  const auto order = probabilities.argsort(/*stable=*/true, -1, true);
  return {
      probabilities.gather(-1, order),
      tokens.gather(-1, order),
      torch::ones_like(order, torch::kBool)};
}

// Returns the top candidates of all ranks. Each rank also sends its logsumexp,
// from which the softmax denominator is computed.
Candidates top_of_each_rank(const DTensor& logits, double temperature) {
  const auto& spec = *logits.spec();
  const auto ranks = spec.mesh().size(0);
  const auto held = dtensor::local_intervals(spec, 1);
  const auto part = logits.to_local().to(torch::kDouble) / temperature;
  const auto rows = part.size(0);
  const auto count = std::min(kMost, (logits.size(1) + ranks - 1) / ranks);
  const auto mine = std::min(count, part.size(1));
  auto message = torch::full({rows, 2 * count + 1}, -INFINITY, torch::kDouble);
  if (mine > 0) {
    const auto [values, places] = part.topk(mine, -1);
    message.slice(1, 0, mine).copy_(values);
    message.slice(1, count, count + mine).copy_(places + held[0].begin);
    message.select(1, 2 * count).copy_(part.logsumexp(-1));
  }
  const auto all = dtensor::get_group(spec.mesh(), 0)
                       .all_gather(message.unsqueeze(1), 1); // (B, ranks, ...)
  const auto sum = all.select(2, 2 * count).logsumexp(1).unsqueeze(1);
  const auto values = all.slice(2, 0, count).flatten(1);
  const auto tokens = all.slice(2, count, 2 * count).flatten(1);
  auto candidates = sorted((values - sum).exp(), tokens.nan_to_num(0, 0, 0));
  // A rank may have further tokens that are less probable than its last
  // candidate.
  const auto last = (all.select(2, count - 1) - sum).exp().amax(1, true);
  candidates.complete = candidates.probabilities >= last;
  candidates.tokens = candidates.tokens.to(torch::kLong);
  return candidates;
}

Candidates all_of(const DTensor& logits, double temperature) {
  const auto scaled = logits.full_tensor().to(torch::kDouble) / temperature;
  return sorted(
      scaled.softmax(-1), torch::arange(scaled.size(1)).expand_as(scaled));
}

// Returns the mask of candidates before which the cumulative probability is
// below top_p.
Tensor chosen_from(const Candidates& candidates, double top_p) {
  const auto before =
      candidates.probabilities.cumsum(-1) - candidates.probabilities;
  return before < top_p;
}

bool is_settled(const Candidates& candidates, double top_p) {
  const auto wanted = chosen_from(candidates, top_p);
  const auto unsure = wanted.logical_and(candidates.complete.logical_not());
  const auto reached = candidates.probabilities.sum(-1) >= top_p;
  return !unsure.any().item<bool>() && reached.all().item<bool>();
}

} // namespace

Tensor next_tokens(const DTensor& logits, const Sampling& sampling) {
  if (sampling.temperature == 0) {
    return DTensor(torch::argmax(logits, -1)).to_local();
  }
  auto candidates = top_of_each_rank(logits, sampling.temperature);
  if (!is_settled(candidates, sampling.top_p)) {
    candidates = all_of(logits, sampling.temperature);
  }
  const auto kept = candidates.probabilities.masked_fill(
      chosen_from(candidates, sampling.top_p).logical_not(), 0);
  const auto reached = kept.cumsum(-1);
  const auto target =
      torch::rand({kept.size(0), 1}, sampling.generator, torch::kDouble) *
      reached.slice(1, -1);
  const auto place =
      (reached <= target).sum(-1, true).clamp_max(kept.size(1) - 1);
  return candidates.tokens.gather(-1, place).squeeze(-1);
}

} // namespace llama
