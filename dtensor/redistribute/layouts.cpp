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
  const size_t now = number / strides_[i] % space_.options[i].size();
  return number + strides_[i] * option - strides_[i] * now;
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

const BlockCounts& Layouts::blocks(size_t number, PlacementsRef placements) {
  BlockCounts& blocks = layouts_[number].blocks;
  if (blocks.empty()) {
    blocks = block_counts(space_.frame, placements);
  }
  return blocks;
}

bool Layouts::are_last(size_t number, uint64_t mask) {
  constexpr uint64_t kMasks = 64;
  if (mask >= kMasks) {
    return compute_are_last(number, mask);
  }
  Layout& layout = layouts_[number];
  const uint64_t bit = uint64_t{1} << mask;
  if ((layout.last_is_known & bit) == 0) {
    layout.last_is_known |= bit;
    layout.last |= compute_are_last(number, mask) ? bit : 0;
  }
  return (layout.last & bit) != 0;
}

bool Layouts::compute_are_last(size_t number, uint64_t mask) const {
  MeshDims dims;
  for (size_t i = 0; i < space_.options.size(); ++i) {
    if ((mask & mesh_dim_bit(i)) != 0) {
      dims.push_back(static_cast<int64_t>(i));
    }
  }
  return are_last_shardings(space_.frame, placements_of(number), dims);
}

bool Layouts::can_exchange(size_t before, size_t after, uint64_t mask) {
  const Placements held = placements_of(before);
  const Placements wanted = placements_of(after);
  return is_possible(
      space_.frame,
      {held, wanted, blocks(before, held), blocks(after, wanted), mask});
}

} // namespace dtensor::detail
