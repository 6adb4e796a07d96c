// SPDX-License-Identifier: BSD-3-Clause
// ShardGrid: a tensor divided at every boundary of a local shard, and the ranks
// that hold each cell. Pictures of layouts show such a grid.
//
//   f32[8, 6] on (dp=2, tp=2): S(0) P(sum)
//   pieces  {[0, 4), [4, 8)}  {[0, 6)}
//   label   "cpu:sum(0,1)"    of the cell {0, 0}
#pragma once

#include <dtensor/layout/spec.h>

#include <string>
#include <utility>
#include <vector>

namespace dtensor::detail {

class GridSheet;

class ShardGrid {
 public:
  /// The position of a cell: an interval index per tensor dimension.
  using Cell = c10::SmallVector<size_t, 5>;

  explicit ShardGrid(const Spec& spec);

  const Spec& spec() const {
    return spec_;
  }
  /// Returns the intervals of tensor dimension `dim`, in order.
  const Intervals& pieces(size_t dim) const {
    return pieces_[dim];
  }
  /// True if the tensor has no elements and the grid has no cells.
  bool empty() const {
    return spec_.numel() == 0;
  }
  /// Returns the first rank that holds the cell, as its index in the mesh.
  /// Cells of different ranks have different first holders.
  int64_t first_holder(const Cell& cell) const;
  /// Returns the ranks that hold the cell: "cpu:0,2" are replicas,
  /// "cpu:sum(0,2)" are terms.
  std::string label(const Cell& cell) const;
  /// Returns the ranks that hold no elements: "cpu:3", or "".
  std::string empty_ranks_label() const;
  bool has_partial() const {
    return !terms_.empty();
  }

  /// Returns the grid as two-dimensional sheets. Rows and columns are the two
  /// most finely divided dimensions. Each combination of intervals of the other
  /// dimensions has a sheet.
  std::vector<GridSheet> sheets() const;

 private:
  using Coordinate = std::vector<int64_t>;
  /// Mesh dimensions with terms of the same reduction.
  struct Terms {
    ReduceOp op = ReduceOp::kSum;
    std::vector<int64_t> mesh_dims;
  };

  size_t index_of(const Cell& cell) const;
  void find_pieces();
  void find_holders();
  void enter(int64_t index, const std::vector<Intervals>& held);
  std::vector<Coordinate> along(
      const Coordinate& from,
      const std::vector<int64_t>& mesh_dims) const;
  int64_t rank_at(const Coordinate& coordinate) const;
  std::string terms_text(const Coordinate& from, size_t level) const;
  std::string device() const;

  const Spec& spec_;
  std::vector<int64_t> copies_; // mesh dimensions with Replicate
  std::vector<Terms> terms_;
  std::vector<Intervals> pieces_;
  std::vector<int64_t> holders_; // by index_of(cell)
  std::vector<int64_t> idle_;    // ranks
};

/// Returns the text of an interval: its first and last index, "0-3", prefixed
/// by its dimension if the tensor has more than two, "dim 1: 0-3". "" for
/// dimension -1.
std::string piece_text(int64_t ndim, int64_t dim, const Interval& piece);

/// A two-dimensional sheet of a grid.
class GridSheet {
 public:
  /// `row_dim` and `col_dim` are -1 for dimensions that the tensor does not
  /// have. `corner` is the upper left cell.
  GridSheet(
      const ShardGrid& grid,
      int64_t row_dim,
      int64_t col_dim,
      ShardGrid::Cell corner)
      : grid_(&grid),
        row_dim_(row_dim),
        col_dim_(col_dim),
        corner_(std::move(corner)) {}

  /// Return the tensor dimensions of the rows and of the columns.
  int64_t row_dim() const {
    return row_dim_;
  }
  int64_t col_dim() const {
    return col_dim_;
  }
  size_t rows() const {
    return count(row_dim_);
  }
  size_t cols() const {
    return count(col_dim_);
  }
  /// Return the index range of a row or of a column.
  Interval row(size_t row) const {
    return piece(row_dim_, row);
  }
  Interval col(size_t col) const {
    return piece(col_dim_, col);
  }
  std::string row_text(size_t index) const {
    return piece_text(ndim(), row_dim_, row(index));
  }
  std::string col_text(size_t index) const {
    return piece_text(ndim(), col_dim_, col(index));
  }
  int64_t ndim() const {
    return static_cast<int64_t>(corner_.size());
  }
  ShardGrid::Cell cell(size_t row, size_t col) const;
  std::string label(size_t row, size_t col) const {
    return grid_->label(cell(row, col));
  }
  /// Returns a color number, different for different regions.
  size_t color(size_t row, size_t col) const {
    return static_cast<size_t>(grid_->first_holder(cell(row, col)));
  }
  /// Returns the intervals of the other dimensions: "dim 1: 4-7"; "" if they
  /// are not divided.
  std::string title() const;

 private:
  size_t count(int64_t dim) const {
    return dim < 0 ? 1 : grid_->pieces(static_cast<size_t>(dim)).size();
  }
  Interval piece(int64_t dim, size_t index) const {
    return dim < 0 ? Interval{0, 1}
                   : grid_->pieces(static_cast<size_t>(dim))[index];
  }

  const ShardGrid* grid_;
  int64_t row_dim_;
  int64_t col_dim_;
  ShardGrid::Cell corner_;
};

} // namespace dtensor::detail
