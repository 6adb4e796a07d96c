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
#include <vector>

namespace dtensor::detail {

/// A two-dimensional sheet of a grid.
struct GridSheet {
  /// A row or a column.
  struct Line {
    Interval range; // of indices
    /// First and last index, "0-3", prefixed by the dimension if the tensor has
    /// more than two, "dim 1: 0-3". "" for a dimension that the tensor lacks.
    std::string text;
  };
  struct Region {
    std::string label; // ranks, as of ShardGrid::label()
    size_t color = 0;  // different for different regions
  };

  // Tensor dimensions; -1 for dimensions that the tensor lacks.
  int64_t row_dim = -1;
  int64_t col_dim = -1;
  size_t ndim = 0; // of the tensor
  std::vector<Line> rows;
  std::vector<Line> cols;
  std::vector<std::vector<Region>> cells; // by row and column
  /// Intervals of the other dimensions: "dim 1: 4-7"; "" if they are not
  /// divided.
  std::string title;
};

class ShardGrid {
 public:
  /// The position of a cell: an interval index per tensor dimension.
  using Cell = c10::SmallVector<size_t, 5>;

  explicit ShardGrid(const Spec& spec);

  /// Returns the intervals of tensor dimension `dim`, in order.
  const Intervals& pieces(size_t dim) const {
    return pieces_[dim];
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
  std::string piece_text(size_t dim, const Interval& piece) const;
  std::vector<GridSheet::Line> lines_along(int64_t dim) const;
  void fill(GridSheet& sheet, const Cell& corner) const;

  const Spec& spec_;
  std::vector<int64_t> copies_; // mesh dimensions with Replicate
  std::vector<Terms> terms_;
  std::vector<Intervals> pieces_;
  std::vector<int64_t> holders_; // by index_of(cell)
  std::vector<int64_t> idle_;    // ranks
};

} // namespace dtensor::detail
