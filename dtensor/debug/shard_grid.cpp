// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/debug/shard_grid_impl.h>

#include <c10/core/DeviceType.h>
#include <c10/util/StringUtil.h>
#include <dtensor/format_text.h>

#include <algorithm>
#include <numeric>

namespace dtensor::detail {
namespace {

// Returns the intervals of each dimension held by the rank at `coordinate`.
std::vector<Intervals> held_at(const Spec& spec, SizesRef coordinate) {
  std::vector<Intervals> held;
  for (int64_t d = 0; d < spec.dim(); ++d) {
    held.push_back(local_intervals(
        spec.sizes()[static_cast<size_t>(d)],
        d,
        spec.mesh().shape(),
        spec.placements(),
        coordinate));
  }
  return held;
}

bool comes_first(const Interval& a, const Interval& b) {
  return a.begin < b.begin;
}

bool holds_nothing(const std::vector<Intervals>& held) {
  return std::ranges::any_of(
      held, [](const Intervals& intervals) { return intervals.empty(); });
}

// Prints runs of three or more ranks as a range: 0,1,4-7.
std::string ranks_text(const std::vector<int64_t>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) {
      ++end;
    }
    text += text.empty() ? "" : ",";
    if (end - i > 2) {
      text += c10::str(ranks[i], "-", ranks[end - 1]);
      i = end;
    } else {
      text += c10::str(ranks[i++]);
    }
  }
  return text;
}

// Visits all positions of a grid of these sizes, the last dimension fastest.
template <class Visit>
void for_each_position(const std::vector<size_t>& sizes, const Visit& visit) {
  ShardGrid::Cell at(sizes.size(), 0);
  for (;;) {
    visit(at);
    size_t d = sizes.size();
    while (d > 0 && ++at[d - 1] == sizes[d - 1]) {
      at[--d] = 0;
    }
    if (d == 0) {
      return;
    }
  }
}

} // namespace

ShardGrid::ShardGrid(const Spec& spec) : spec_(spec) {
  for (int64_t m = 0; m < spec.mesh().ndim(); ++m) {
    const auto& placement = spec.placements()[static_cast<size_t>(m)];
    if (placement.is_replicate()) {
      copies_.push_back(m);
    } else if (placement.is_partial()) {
      if (terms_.empty() || terms_.back().op != placement.reduce_op()) {
        terms_.push_back({placement.reduce_op(), {}});
      }
      terms_.back().mesh_dims.push_back(m);
    }
  }
  find_pieces();
  find_holders();
}

void ShardGrid::find_pieces() {
  pieces_.resize(static_cast<size_t>(spec_.dim()));
  for (int64_t i = 0; i < spec_.mesh().size(); ++i) {
    const auto held = held_at(spec_, spec_.mesh().coordinate_of(i));
    for (size_t d = 0; d < held.size(); ++d) {
      pieces_[d].append(held[d].begin(), held[d].end());
    }
  }
  for (auto& pieces : pieces_) {
    std::ranges::sort(pieces, comes_first);
    pieces.erase(std::unique(pieces.begin(), pieces.end()), pieces.end());
  }
}

void ShardGrid::find_holders() {
  size_t cells = 1;
  for (const auto& pieces : pieces_) {
    cells *= pieces.size();
  }
  holders_.assign(cells, -1);
  for (int64_t i = 0; i < spec_.mesh().size(); ++i) {
    const auto held = held_at(spec_, spec_.mesh().coordinate_of(i));
    if (holds_nothing(held)) {
      idle_.push_back(spec_.mesh().ranks()[static_cast<size_t>(i)]);
    } else {
      enter(i, held);
    }
  }
}

// Records that the `index`-th rank holds the cells of these intervals.
void ShardGrid::enter(int64_t index, const std::vector<Intervals>& held) {
  std::vector<size_t> sizes;
  for (const auto& intervals : held) {
    sizes.push_back(intervals.size());
  }
  for_each_position(sizes, [&](const Cell& at) {
    Cell cell;
    for (size_t d = 0; d < held.size(); ++d) {
      const auto* const piece =
          std::ranges::lower_bound(pieces_[d], held[d][at[d]], comes_first);
      cell.push_back(static_cast<size_t>(piece - pieces_[d].begin()));
    }
    auto& holder = holders_[index_of(cell)];
    holder = holder < 0 ? index : holder;
  });
}

size_t ShardGrid::index_of(const Cell& cell) const {
  size_t index = 0;
  for (size_t d = 0; d < cell.size(); ++d) {
    index = index * pieces_[d].size() + cell[d];
  }
  return index;
}

int64_t ShardGrid::first_holder(const Cell& cell) const {
  return holders_[index_of(cell)];
}

std::vector<ShardGrid::Coordinate> ShardGrid::along(
    const Coordinate& from,
    const std::vector<int64_t>& mesh_dims) const {
  std::vector<size_t> sizes;
  for (const int64_t m : mesh_dims) {
    sizes.push_back(static_cast<size_t>(spec_.mesh().size(m)));
  }
  std::vector<Coordinate> all;
  for_each_position(sizes, [&](const Cell& at) {
    all.push_back(from);
    for (size_t i = 0; i < mesh_dims.size(); ++i) {
      all.back()[static_cast<size_t>(mesh_dims[i])] =
          static_cast<int64_t>(at[i]);
    }
  });
  return all;
}

int64_t ShardGrid::rank_at(const Coordinate& coordinate) const {
  const auto shape = spec_.mesh().shape();
  int64_t index = 0;
  for (size_t m = 0; m < shape.size(); ++m) {
    index = index * shape[m] + coordinate[m];
  }
  return spec_.mesh().ranks()[static_cast<size_t>(index)];
}

// Returns "sum(0,1)"; for avg and sum together "avg(sum(0,1),sum(2,3))".
std::string ShardGrid::terms_text(const Coordinate& from, size_t level) const {
  const auto& terms = terms_[level];
  std::string inner;
  std::vector<int64_t> ranks;
  for (const auto& coordinate : along(from, terms.mesh_dims)) {
    if (level + 1 < terms_.size()) {
      inner += inner.empty() ? "" : ",";
      inner += terms_text(coordinate, level + 1);
    } else {
      ranks.push_back(rank_at(coordinate));
    }
  }
  return c10::str(to_string(terms.op), "(", inner, ranks_text(ranks), ")");
}

std::string ShardGrid::device() const {
  return c10::DeviceTypeName(spec_.mesh().device_type(), /*lower_case=*/true) +
      ":";
}

std::string ShardGrid::label(const Cell& cell) const {
  const auto first = spec_.mesh().coordinate_of(first_holder(cell));
  std::vector<int64_t> ranks;
  std::string text;
  for (const auto& copy : along(first, copies_)) {
    if (terms_.empty()) {
      ranks.push_back(rank_at(copy));
    } else {
      text += (text.empty() ? "" : ",") + terms_text(copy, 0);
    }
  }
  return device() + text + ranks_text(ranks);
}

std::string ShardGrid::empty_ranks_label() const {
  return idle_.empty() ? "" : device() + ranks_text(idle_);
}

std::vector<GridSheet> ShardGrid::sheets() const {
  std::vector<int64_t> dims(pieces_.size());
  std::iota(dims.begin(), dims.end(), 0);
  // Selects the most finely divided dimensions, so that there are few sheets.
  // Later dimensions win ties.
  std::ranges::stable_sort(dims, [&](int64_t a, int64_t b) {
    const auto count_a = pieces_[static_cast<size_t>(a)].size();
    const auto count_b = pieces_[static_cast<size_t>(b)].size();
    return count_a != count_b ? count_a > count_b : a > b;
  });
  dims.resize(std::min<size_t>(dims.size(), 2));
  std::ranges::sort(dims);
  std::vector<GridSheet> sheets;
  if (spec_.numel() == 0) {
    return sheets; // there are no cells
  }
  std::vector<size_t> sizes;
  for (const auto& pieces : pieces_) {
    sizes.push_back(pieces.size());
  }
  for (const int64_t dim : dims) {
    sizes[static_cast<size_t>(dim)] = 1;
  }
  dims.resize(2, -1);
  for_each_position(sizes, [&](const Cell& corner) {
    auto& sheet = sheets.emplace_back();
    sheet.row_dim = dims[0];
    sheet.col_dim = dims[1];
    fill(sheet, corner);
  });
  return sheets;
}

std::string ShardGrid::piece_text(size_t dim, const Interval& piece) const {
  const auto range = c10::str(piece.begin, "-", piece.end - 1);
  return pieces_.size() > 2 ? detail::format_text("dim {}: {}", dim, range)
                            : range;
}

std::vector<GridSheet::Line> ShardGrid::lines_along(int64_t dim) const {
  if (dim < 0) {
    return {{Interval{0, 1}, ""}};
  }
  std::vector<GridSheet::Line> lines;
  for (const auto& piece : pieces_[static_cast<size_t>(dim)]) {
    lines.push_back({piece, piece_text(static_cast<size_t>(dim), piece)});
  }
  return lines;
}

// Fills the sheet whose upper left cell is `corner`.
void ShardGrid::fill(GridSheet& sheet, const Cell& corner) const {
  sheet.ndim = pieces_.size();
  sheet.rows = lines_along(sheet.row_dim);
  sheet.cols = lines_along(sheet.col_dim);
  for (size_t row = 0; row < sheet.rows.size(); ++row) {
    auto& cells = sheet.cells.emplace_back();
    for (size_t col = 0; col < sheet.cols.size(); ++col) {
      auto cell = corner;
      if (sheet.row_dim >= 0) {
        cell[static_cast<size_t>(sheet.row_dim)] = row;
      }
      if (sheet.col_dim >= 0) {
        cell[static_cast<size_t>(sheet.col_dim)] = col;
      }
      cells.push_back({label(cell), static_cast<size_t>(first_holder(cell))});
    }
  }
  for (size_t d = 0; d < corner.size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    if (dim != sheet.row_dim && dim != sheet.col_dim && pieces_[d].size() > 1) {
      sheet.title += sheet.title.empty() ? "" : ", ";
      sheet.title += piece_text(d, pieces_[d][corner[d]]);
    }
  }
}

} // namespace dtensor::detail
