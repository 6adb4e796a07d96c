// SPDX-License-Identifier: BSD-3-Clause
// ShardGrid: a tensor cut at every place where a rank's part begins or ends,
// and who holds each of the cells. What the pictures of a layout are drawn
// from.
//
//   f32[8, 6] on (dp=2, tp=2): S(0) P(sum)
//   pieces  {[0, 4), [4, 8)}  {[0, 6)}
//   label   "cpu:sum(0,1)"    of the cell {0, 0}
#pragma once

#include <dtensor/api.h>
#include <dtensor/layout/spec.h>

#include <string>
#include <utility>
#include <vector>

namespace dtensor::detail {

class GridSheet;

class DTENSOR_API ShardGrid {
 public:
  /// The position of a cell: one piece of every tensor dimension.
  using Cell = c10::SmallVector<size_t, 5>;

  explicit ShardGrid(const Spec& spec);

  const Spec& spec() const {
    return spec_;
  }
  /// The pieces of tensor dimension `dim`, in order.
  const Intervals& pieces(size_t dim) const {
    return pieces_[dim];
  }
  /// Whether the tensor has no elements, and the grid no cells.
  bool empty() const {
    return spec_.numel() == 0;
  }
  /// The first rank that holds the cell, as its index in the mesh: different
  /// for cells of different ranks.
  int64_t first_holder(const Cell& cell) const;
  /// Who holds the cell: "cpu:0,2" are copies, "cpu:sum(0,2)" are terms.
  std::string label(const Cell& cell) const;
  /// Who holds nothing: "cpu:3", or "".
  std::string idle_label() const;
  bool has_partial() const {
    return !terms_.empty();
  }

  /// The grid on paper: two dimensions are rows and columns, those that are cut
  /// most, and there is a sheet for each combination of pieces of the others.
  std::vector<GridSheet> sheets() const;

 private:
  using Coordinate = std::vector<int64_t>;
  /// Mesh dimensions whose ranks hold terms of one reduction.
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
  std::vector<int64_t> copies_; // mesh dimensions that replicate
  std::vector<Terms> terms_;
  std::vector<Intervals> pieces_;
  std::vector<int64_t> holders_; // by index_of(cell)
  std::vector<int64_t> idle_;    // ranks
};

/// A piece as its first and last index, "0-3", and where there are more than
/// two dimensions with its own, "dim 1: 0-3". "" for dimension -1.
std::string piece_text(int64_t ndim, int64_t dim, const Interval& piece);

/// One sheet of a grid.
class DTENSOR_API GridSheet {
 public:
  /// Dimensions that the tensor does not have are -1. `corner` is the upper
  /// left cell.
  GridSheet(
      const ShardGrid& grid,
      int64_t row_dim,
      int64_t col_dim,
      ShardGrid::Cell corner)
      : grid_(&grid),
        row_dim_(row_dim),
        col_dim_(col_dim),
        corner_(std::move(corner)) {}

  /// The tensor dimension that is the rows, the columns.
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
  /// Which indices a row, a column is.
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
  /// A number for colours: other regions have others.
  size_t color(size_t row, size_t col) const {
    return static_cast<size_t>(grid_->first_holder(cell(row, col)));
  }
  /// Which pieces of the other dimensions it is of: "dim 1: 4-7"; "" where they
  /// are not cut.
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
