// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/checkpoint/write_plan_impl.h>

#include <algorithm>
#include <map>
#include <utility>

namespace dtensor::detail {
namespace {

// Minimum size for splitting the work. Smaller tensors are written by one rank.
constexpr int64_t kSplitBytes = int64_t{1} << 20;

// Elements of a tensor that the same ranks hold.
struct Cell {
  std::vector<WrittenBox> boxes;
  std::vector<int64_t> ranks;
  int64_t bytes = 0;
};

// Returns the Cartesian product of the intervals of all dimensions.
std::vector<WrittenBox> boxes_of(
    size_t tensor,
    const std::vector<Intervals>& intervals) {
  std::vector<WrittenBox> boxes(1);
  boxes[0].tensor = tensor;
  for (const auto& list : intervals) {
    std::vector<WrittenBox> next;
    for (const auto& box : boxes) {
      int64_t at = 0;
      for (const auto& interval : list) {
        auto longer = box;
        longer.offsets.push_back(interval.begin);
        longer.local_offsets.push_back(at);
        longer.sizes.push_back(interval.size());
        at += interval.size();
        next.push_back(std::move(longer));
      }
    }
    boxes = std::move(next);
  }
  std::erase_if(boxes, [](const auto& box) { return numel(box.sizes) == 0; });
  return boxes;
}

// Returns the coordinate of the mesh's rank at row-major `index`.
Sizes coordinate_at(const std::vector<int64_t>& shape, int64_t index) {
  Sizes coordinate(shape.size(), 0);
  for (size_t d = shape.size(); d-- > 0;) {
    coordinate[d] = index % shape[d];
    index /= shape[d];
  }
  return coordinate;
}

// Groups the ranks by the local shard that they hold. Ranks hold the same local
// shard if their coordinates differ only in mesh dimensions that do not shard
// the tensor.
std::vector<Cell> cells_of(const HeldTensor& tensor, size_t number) {
  std::map<std::vector<int64_t>, Cell> cells;
  for (size_t r = 0; r < tensor.meshes[0].size(); ++r) {
    const auto coordinate =
        coordinate_at(tensor.mesh_shape, static_cast<int64_t>(r));
    std::vector<int64_t> key;
    for (size_t m = 0; m < tensor.placements.size(); ++m) {
      key.push_back(tensor.placements[m].is_sharded() ? coordinate[m] : 0);
    }
    auto& cell = cells[key];
    if (cell.ranks.empty()) {
      std::vector<Intervals> intervals;
      for (size_t d = 0; d < tensor.sizes.size(); ++d) {
        intervals.push_back(local_intervals(
            tensor.sizes[d],
            static_cast<int64_t>(d),
            tensor.mesh_shape,
            tensor.placements,
            coordinate));
      }
      cell.boxes = boxes_of(number, intervals);
      for (const auto& box : cell.boxes) {
        cell.bytes += numel(box.sizes) *
            static_cast<int64_t>(c10::elementSize(tensor.dtype));
      }
    }
    for (const auto& ranks : tensor.meshes) {
      cell.ranks.push_back(ranks[r]);
    }
  }
  std::vector<Cell> all;
  for (auto& item : cells) {
    if (!item.second.boxes.empty()) {
      all.push_back(std::move(item.second));
    }
  }
  return all;
}

// Returns the cell of a tensor without elements, recorded by its first holder.
Cell empty_cell(const HeldTensor& tensor, size_t number) {
  const Sizes zeros(tensor.sizes.size(), 0);
  const auto holder = tensor.meshes[0][0];
  return {{{number, holder, zeros, zeros, tensor.sizes}}, {holder}, 0};
}

class Planner {
 public:
  explicit Planner(int64_t ranks) : load_(static_cast<size_t>(ranks), 0) {}

  void add(const Cell& cell) {
    const auto share = std::clamp<int64_t>(
        cell.bytes / kSplitBytes, 1, static_cast<int64_t>(cell.ranks.size()));
    const auto writers = least_loaded(cell.ranks, share);
    for (const auto& box : cell.boxes) {
      split_box(box, writers);
    }
    for (const auto rank : writers) {
      load_[static_cast<size_t>(rank)] += cell.bytes / share;
    }
  }

  WritePlan take_plan() {
    auto& boxes = plan_.boxes;
    std::ranges::stable_sort(boxes, [](const auto& a, const auto& b) {
      return std::pair(a.tensor, a.rank) < std::pair(b.tensor, b.rank);
    });
    for (size_t i = 1; i < boxes.size(); ++i) {
      if (boxes[i].tensor == boxes[i - 1].tensor &&
          boxes[i].rank == boxes[i - 1].rank) {
        boxes[i].file = boxes[i - 1].file + 1;
        plan_.files = std::max(plan_.files, boxes[i].file + 1);
      }
    }
    return std::move(plan_);
  }

 private:
  std::vector<int64_t> least_loaded(std::vector<int64_t> ranks, int64_t count) {
    std::ranges::stable_sort(ranks, [&](int64_t a, int64_t b) {
      return load_[static_cast<size_t>(a)] < load_[static_cast<size_t>(b)];
    });
    ranks.resize(static_cast<size_t>(count));
    std::ranges::sort(ranks);
    return ranks;
  }

  // Splits a box along the first dimension that is long enough, or else the
  // longest.
  void split_box(const WrittenBox& box, const std::vector<int64_t>& ranks) {
    const auto shares = static_cast<int64_t>(ranks.size());
    const auto& sizes = box.sizes;
    auto dim = std::ranges::find_if(
        sizes, [&](int64_t size) { return size >= shares; });
    if (dim == sizes.end()) {
      dim = std::ranges::max_element(sizes);
    }
    const auto d = static_cast<size_t>(dim - sizes.begin());
    for (int64_t i = 0; i < shares; ++i) {
      auto written = box;
      written.rank = ranks[static_cast<size_t>(i)];
      if (shares > 1) {
        const auto part = chunk(sizes[d], shares, i);
        written.offsets[d] += part.begin;
        written.local_offsets[d] += part.begin;
        written.sizes[d] = part.size();
        if (part.size() == 0) {
          continue;
        }
      }
      plan_.boxes.push_back(std::move(written));
    }
  }

  WritePlan plan_;
  std::vector<int64_t> load_;
};

} // namespace

WritePlan plan_writes(const std::vector<HeldTensor>& tensors, int64_t ranks) {
  std::vector<Cell> cells;
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto of_tensor = numel(tensors[i].sizes) == 0
        ? std::vector<Cell>{empty_cell(tensors[i], i)}
        : cells_of(tensors[i], i);
    cells.insert(cells.end(), of_tensor.begin(), of_tensor.end());
  }
  // Cells with a single holder leave no choice, so their load is counted first.
  // Then come the large cells, so that the small ones can even out the load.
  std::ranges::stable_sort(cells, [](const auto& a, const auto& b) {
    const bool a_alone = a.ranks.size() == 1;
    const bool b_alone = b.ranks.size() == 1;
    return a_alone != b_alone ? a_alone : a.bytes > b.bytes;
  });
  Planner planner(ranks);
  for (const auto& cell : cells) {
    planner.add(cell);
  }
  return planner.take_plan();
}

} // namespace dtensor::detail
