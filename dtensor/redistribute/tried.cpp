// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/redistribute/tried_impl.h>

namespace dtensor::detail {

TriedExchanges::TriedExchanges(
    const std::vector<DimSet>& sets,
    Layouts& layouts)
    : sets_(sets),
      layouts_(layouts),
      first_(sets.size() * layouts.size(), -1) {}

bool TriedExchanges::add(
    size_t number,
    size_t set,
    const PathCost& cost,
    bool all) {
  const DimSet& over = sets_[set];
  size_t beside = number;
  for (const int64_t dim : over.dims) {
    beside = layouts_.changed(beside, static_cast<size_t>(dim), size_t{0});
  }
  int64_t& first = first_[set * layouts_.size() + beside];
  for (int64_t at = first; at >= 0;) {
    Entry& entry = entries_[static_cast<size_t>(at)];
    const bool same = entry.number == number ||
        layouts_.keeps_blocks(number, entry.number, over.mask).value_or(false);
    if (same && entry.cost <= cost && (entry.all || !all)) {
      return false;
    }
    at = entry.next;
  }
  entries_.push_back({number, cost, all, first});
  first = static_cast<int64_t>(entries_.size()) - 1;
  return true;
}

} // namespace dtensor::detail
