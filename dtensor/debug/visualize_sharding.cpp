// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/debug/visualize_sharding.h>

#include <dtensor/debug/shard_grid_impl.h>
#include <dtensor/format_text.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/dtensor.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <numeric>
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
        widths_(sheet.cols.size(), 0) {
    measure();
  }

  std::string text() const {
    std::string text;
    if (sheet_.col_dim >= 0) {
      append_heads(text);
    }
    for (size_t row = 0; row < sheet_.rows.size(); ++row) {
      append_row(text, row);
    }
    return text;
  }

 private:
  // Returns "Row 0-3"; for more than two dimensions, "dim 2: 0-3".
  std::string head(const char* kind, const std::string& text) const {
    return text.empty() || sheet_.ndim > 2 ? text : kind + text;
  }
  std::string row_head(size_t row) const {
    return head("Row ", sheet_.rows[row].text);
  }
  std::string col_head(size_t col) const {
    return head("Col ", sheet_.cols[col].text);
  }

  // Column widths are at least two characters wider than the head, as in
  // Python.
  void measure() {
    for (size_t col = 0; col < widths_.size(); ++col) {
      widths_[col] = sheet_.col_dim < 0 ? 0 : col_head(col).size() + 2;
      for (size_t row = 0; row < sheet_.rows.size(); ++row) {
        head_width_ = std::max(head_width_, row_head(row).size());
        widths_[col] =
            std::max(widths_[col], sheet_.cells[row][col].label.size());
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
      const auto& region = sheet_.cells[row][col];
      const auto label = padded(region.label, widths_[col]);
      line += line.empty() ? "" : "  ";
      line += use_color_ ? colored(label, region.color) : label;
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
      std::ranges::all_of(*coordinate, [](int64_t c) { return c == 0; });
}

} // namespace

std::string visualize_sharding(
    const Spec& spec,
    const VisualizeShardingOptions& options) {
  const detail::ShardGrid grid(spec);
  auto text = options.header.empty() ? "" : options.header + ": ";
  text += to_string(spec) + "\n";
  for (const auto& sheet : grid.sheets()) {
    text += sheet.title.empty() ? "" : "\n" + sheet.title + "\n";
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

namespace {

// Light colors. Neighbors are easy to distinguish.
constexpr std::array<const char*, 12> kFills = {
    "#aed6f1",
    "#fad7a0",
    "#abebc6",
    "#f5b7b1",
    "#d2b4de",
    "#f9e79f",
    "#a3e4d7",
    "#edbb99",
    "#d5f5e3",
    "#e8c1e0",
    "#d9e3a5",
    "#9fc5e8"};

// Sizes in pixels.
constexpr int64_t kLetter = 7; // width of a letter
constexpr int64_t kLine = 18;
constexpr int64_t kGap = 12;
constexpr int64_t kLongSide = 320;
constexpr int64_t kShortSide = 80;

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    safe += c == '&' ? "&amp;"
        : c == '<'   ? "&lt;"
        : c == '>'   ? "&gt;"
        : c == '"'   ? "&quot;"
                     : std::string(1, c);
  }
  return safe;
}

int64_t width_of(const std::string& text) {
  return kLetter * static_cast<int64_t>(text.size());
}

std::string text_at(
    int64_t x,
    int64_t y,
    const std::string& text,
    const char* anchor = "start") {
  return detail::format_text(
      "<text x=\"{}\" y=\"{}\" text-anchor=\"{}\">{}</text>\n",
      x,
      y,
      anchor,
      escaped(text));
}

std::string rectangle(
    int64_t x,
    int64_t y,
    int64_t width,
    int64_t height,
    const char* fill) {
  return detail::format_text(
      "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\" "
      "stroke=\"#333\"/>\n",
      x,
      y,
      width,
      height,
      fill);
}

// The drawn part of a picture, and its size.
struct Drawing {
  std::string body;
  int64_t width = 0;
  int64_t height = 0;
};

// Draws one sheet of the grid, with its corner at the origin.
class Sheet {
 public:
  Sheet(const detail::GridSheet& sheet, const Spec& spec, bool hatched)
      : sheet_(sheet),
        hatched_(hatched) {
    measure(size(spec, sheet.row_dim), size(spec, sheet.col_dim));
  }

  Drawing draw() const {
    const auto& title = sheet_.title;
    const int64_t top = (title.empty() ? 0 : kLine) + kLine;
    const int64_t left = head_width_ + kGap;
    Drawing drawing;
    drawing.body = title.empty() ? "" : text_at(left, kLine - 5, title);
    draw_col_heads(drawing.body, left, top - 5);
    int64_t y = top;
    for (size_t row = 0; row < heights_.size(); ++row) {
      draw_row(drawing.body, row, left, y);
      y += heights_[row];
    }
    drawing.width = left + std::max(sum(widths_), width_of(title));
    drawing.height = y;
    return drawing;
  }

 private:
  static int64_t size(const Spec& spec, int64_t dim) {
    return dim < 0 ? 1 : spec.sizes()[static_cast<size_t>(dim)];
  }
  static int64_t sum(const std::vector<int64_t>& sizes) {
    return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  }
  // Computes sizes to scale, enlarged where labels need space.
  void measure(int64_t row_size, int64_t col_size) {
    const auto longest = std::max(row_size, col_size);
    const auto length = [&](int64_t size) {
      return std::max(kShortSide, kLongSide * size / longest);
    };
    for (const auto& row : sheet_.rows) {
      const auto part = length(row_size) * row.range.size() / row_size;
      heights_.push_back(std::max(part, kLine + 4));
      head_width_ = std::max(head_width_, width_of(row.text));
    }
    for (size_t col = 0; col < sheet_.cols.size(); ++col) {
      auto least = width_of(sheet_.cols[col].text);
      for (const auto& row : sheet_.cells) {
        least = std::max(least, width_of(row[col].label));
      }
      const auto part =
          length(col_size) * sheet_.cols[col].range.size() / col_size;
      widths_.push_back(std::max(part, least + kGap));
    }
  }
  void draw_col_heads(std::string& body, int64_t x, int64_t y) const {
    for (size_t col = 0; col < widths_.size(); ++col) {
      body += text_at(x + widths_[col] / 2, y, sheet_.cols[col].text, "middle");
      x += widths_[col];
    }
  }
  void draw_row(std::string& body, size_t row, int64_t x, int64_t y) const {
    const auto height = heights_[row];
    const auto middle = y + height / 2 + 4;
    body += text_at(x - 6, middle, sheet_.rows[row].text, "end");
    for (size_t col = 0; col < widths_.size(); ++col) {
      const auto width = widths_[col];
      const auto& region = sheet_.cells[row][col];
      const auto* const fill = kFills[region.color % kFills.size()];
      body += rectangle(x, y, width, height, fill);
      if (hatched_) {
        body += rectangle(x, y, width, height, "url(#partial)");
      }
      body += text_at(x + width / 2, middle, region.label, "middle");
      x += width;
    }
  }

  const detail::GridSheet& sheet_;
  bool hatched_;
  int64_t head_width_ = 0;
  std::vector<int64_t> heights_;
  std::vector<int64_t> widths_;
};

// Adds a line below the drawing.
void add_line(Drawing& picture, const std::string& text) {
  picture.height += kLine;
  picture.width = std::max(picture.width, width_of(text) + 2 * kGap);
  picture.body += text_at(kGap, picture.height, text);
}

void add_sheet(Drawing& picture, const Drawing& sheet) {
  picture.body += detail::format_text(
      "<g transform=\"translate({},{})\">\n{}</g>\n",
      kGap,
      picture.height + kGap,
      sheet.body);
  picture.height += sheet.height + kGap;
  picture.width = std::max(picture.width, sheet.width + 2 * kGap);
}

constexpr const char* kHatch =
    "<defs><pattern id=\"partial\" width=\"8\" height=\"8\" "
    "patternUnits=\"userSpaceOnUse\"><path d=\"M0,8 L8,0\" stroke=\"#333\" "
    "stroke-opacity=\"0.35\"/></pattern></defs>\n";

std::string file_of(const Drawing& picture) {
  const auto height = picture.height + kGap;
  return detail::format_text(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" "
      "viewBox=\"0 0 {} {}\" font-family=\"monospace\" "
      "font-size=\"11\">\n{}<rect width=\"100%\" height=\"100%\" "
      "fill=\"white\"/>\n{}</svg>\n",
      picture.width,
      height,
      picture.width,
      height,
      kHatch,
      picture.body);
}

} // namespace

std::string sharding_svg(const Spec& spec, const std::string& header) {
  const detail::ShardGrid grid(spec);
  Drawing picture;
  add_line(picture, (header.empty() ? "" : header + ": ") + to_string(spec));
  for (const auto& sheet : grid.sheets()) {
    add_sheet(picture, Sheet(sheet, spec, grid.has_partial()).draw());
  }
  if (const auto idle = grid.empty_ranks_label(); !idle.empty()) {
    add_line(picture, "nothing on " + idle);
  }
  return file_of(picture);
}

std::string sharding_svg(const at::Tensor& dtensor, const std::string& header) {
  return sharding_svg(*DTensor(dtensor).spec(), header);
}

} // namespace dtensor
