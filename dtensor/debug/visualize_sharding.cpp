// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/debug/visualize_sharding.h>

#include <dtensor/debug/shard_grid_impl.h>
#include <dtensor/format_text.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/dtensor.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <vector>

namespace dtensor {
namespace {

// Light backgrounds of the 256-color palette. Neighbors are easy to
// distinguish.
constexpr std::array<int, 12> kBackgrounds =
    {153, 223, 151, 217, 189, 229, 159, 216, 194, 182, 186, 117};

std::string padded(const std::string& text, size_t width) {
  return text + std::string(width - text.size(), ' ');
}

std::string colored(const std::string& text, size_t color) {
  const auto background = kBackgrounds[color % kBackgrounds.size()];
  return detail::format_text("\x1b[30;48;5;{}m{}\x1b[0m", background, text);
}

void append_line(std::string& text, std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  text += line + "\n";
}

// Prints one sheet of the grid as a table.
class Table {
 public:
  Table(const detail::GridSheet& sheet, bool use_color)
      : sheet_(sheet),
        use_color_(use_color),
        widths_(sheet.cols(), 0) {
    measure();
  }

  std::string text() const {
    std::string text;
    if (sheet_.col_dim() >= 0) {
      append_heads(text);
    }
    for (size_t row = 0; row < sheet_.rows(); ++row) {
      append_row(text, row);
    }
    return text;
  }

 private:
  // Returns "Row 0-3", or "dim 2: 0-3" for more than two dimensions.
  std::string row_head(size_t row) const {
    const auto text = sheet_.row_text(row);
    return text.empty() || sheet_.ndim() > 2 ? text : "Row " + text;
  }
  std::string col_head(size_t col) const {
    const auto text = sheet_.col_text(col);
    return text.empty() || sheet_.ndim() > 2 ? text : "Col " + text;
  }

  // Column widths are at least two characters wider than the head, as in
  // Python.
  void measure() {
    for (size_t col = 0; col < widths_.size(); ++col) {
      widths_[col] = sheet_.col_dim() < 0 ? 0 : col_head(col).size() + 2;
      for (size_t row = 0; row < sheet_.rows(); ++row) {
        head_width_ = std::max(head_width_, row_head(row).size());
        widths_[col] = std::max(widths_[col], sheet_.label(row, col).size());
      }
    }
  }
  void append_heads(std::string& text) const {
    auto heads = padded("", head_width_);
    std::string rule(head_width_, '-');
    for (size_t col = 0; col < widths_.size(); ++col) {
      heads += "  " + padded(col_head(col), widths_[col]);
      rule += "  " + std::string(widths_[col], '-');
    }
    append_line(text, heads);
    append_line(text, rule);
  }
  void append_row(std::string& text, size_t row) const {
    auto line = padded(row_head(row), head_width_);
    for (size_t col = 0; col < widths_.size(); ++col) {
      const auto label = padded(sheet_.label(row, col), widths_[col]);
      line += line.empty() ? "" : "  ";
      line += use_color_ ? colored(label, sheet_.color(row, col)) : label;
    }
    append_line(text, line);
  }

  const detail::GridSheet& sheet_;
  bool use_color_;
  size_t head_width_ = 0;
  std::vector<size_t> widths_;
};

bool is_first_of_mesh(const DeviceMesh& mesh) {
  const auto& coordinate = mesh.get_coordinate();
  return coordinate.has_value() &&
      std::all_of(coordinate->begin(), coordinate->end(), [](int64_t c) {
           return c == 0;
         });
}

} // namespace

std::string visualize_sharding(
    const Spec& spec,
    const VisualizeShardingOptions& options) {
  const detail::ShardGrid grid(spec);
  auto text = options.header.empty() ? "" : options.header + ": ";
  text += to_string(spec) + "\n";
  for (const auto& sheet : grid.sheets()) {
    const auto title = sheet.title();
    text += title.empty() ? "" : "\n" + title + "\n";
    text += Table(sheet, options.use_color).text();
  }
  const auto idle = grid.empty_ranks_label();
  return idle.empty() ? text : text + "nothing on " + idle + "\n";
}

std::string visualize_sharding(
    const at::Tensor& dtensor,
    const VisualizeShardingOptions& options) {
  const auto spec = DTensor(dtensor).spec();
  auto text = visualize_sharding(*spec, options);
  if (options.print && is_first_of_mesh(spec->mesh())) {
    std::cout << text << std::flush;
  }
  return text;
}

} // namespace dtensor
