// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/redistribute/layouts_impl.h>

#include <algorithm>

namespace dtensor::detail {

Layouts::Layouts(const SearchSpace& space) : space_(space) {
  size_t stride = 1;
  for (const auto& list : space.options) {
    strides_.push_back(stride);
    stride *= list.size();
  }
  layouts_.resize(stride);
}

size_t Layouts::number_of(PlacementsRef placements) const {
  size_t number = 0;
  for (size_t i = 0; i < placements.size(); ++i) {
    number = changed(number, i, placements[i]);
  }
  return number;
}

Placements Layouts::placements_of(size_t number) const {
  Placements placements;
  for (const auto& list : space_.options) {
    placements.push_back(list[number % list.size()]);
    number /= list.size();
  }
  return placements;
}

size_t Layouts::changed(size_t number, size_t i, size_t option) const {
  return changed(number, i, option_of(number, i), option);
}

size_t Layouts::option_of(size_t number, size_t i) const {
  return number / strides_[i] % space_.options[i].size();
}

size_t Layouts::changed(size_t number, size_t i, const Placement& p) const {
  const auto& list = space_.options[i];
  const auto found = std::ranges::find(list, p);
  return changed(number, i, static_cast<size_t>(found - list.begin()));
}

int64_t Layouts::numel(size_t number) {
  int64_t& numel = layouts_[number].numel;
  if (numel < 0) {
    numel = largest_numel(space_.frame, placements_of(number));
  }
  return numel;
}

const BlockCounts& Layouts::blocks(size_t number) {
  BlockCounts& blocks = layouts_[number].blocks;
  if (blocks.empty()) {
    blocks = block_counts(space_.frame, placements_of(number));
  }
  return blocks;
}

std::optional<bool>
Layouts::keeps_blocks(size_t before, size_t after, uint64_t mask) {
  const BlockCounts& held = blocks(before);
  const BlockCounts& wanted = blocks(after);
  bool keeps = true;
  for (size_t i = 0; i < held.size(); ++i) {
    if (held[i] == kUneven || wanted[i] == kUneven) {
      return std::nullopt;
    }
    const bool is_in_mask = (mask & mesh_dim_bit(i)) != 0;
    keeps &= is_in_mask || held[i] == 0 || held[i] == wanted[i];
  }
  return keeps;
}

// Returns the layout with only the shardings of `dim`.
size_t Layouts::along(size_t number, int64_t dim) const {
  size_t result = number;
  for (size_t i = 0; i < space_.options.size(); ++i) {
    const auto& list = space_.options[i];
    if (list.size() > 1 && !list[option_of(number, i)].is_sharded(dim)) {
      result = changed(result, i, Replicate());
    }
  }
  return result;
}

bool Layouts::can_exchange(size_t before, size_t after, uint64_t mask) {
  if (const auto keeps = keeps_blocks(before, after, mask)) {
    return *keeps;
  }
  const auto dims = static_cast<int64_t>(space_.frame.sizes.size());
  for (int64_t dim = 0; dim < dims; ++dim) {
    const std::array<uint64_t, 4> key{
        along(before, dim),
        along(after, dim),
        mask,
        static_cast<uint64_t>(dim)};
    const auto [found, is_new] = holds_all_.try_emplace(key, false);
    if (is_new) {
      const Placements held = placements_of(key[0]);
      const Placements wanted = placements_of(key[1]);
      found->second = holds_all(
          space_.frame,
          {held, wanted, blocks(key[0]), blocks(key[1]), mask},
          dim);
    }
    if (!found->second) {
      return false;
    }
  }
  return true;
}

// A step that slices or pads makes shards from which an exchange could restore
// the full tensor.
std::optional<StepKind>
Layouts::local_step(size_t before, size_t after, size_t i) {
  const uint64_t mask = mesh_dim_bit(i);
  const Placement& from = space_.options[i][option_of(before, i)];
  const Placement& to = space_.options[i][option_of(after, i)];
  if (to.is_sharded()) {
    return can_exchange(after, before, mask) ? std::optional(StepKind::kSlice)
                                             : std::nullopt;
  }
  const ReduceOp op = to.reduce_op();
  const bool fits = goes_with_other_partials(
      placements_of(before), static_cast<int64_t>(i), op);
  if (from.is_replicate()) {
    return fits ? std::optional(StepKind::kPartition) : std::nullopt;
  }
  return fits && can_pad(op) && can_exchange(before, after, mask)
      ? std::optional(StepKind::kPad)
      : std::nullopt;
}

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
