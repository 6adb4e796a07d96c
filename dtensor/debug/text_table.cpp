// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/debug/text_table_impl.h>

#include <algorithm>

namespace dtensor::detail {

std::string aligned(const std::vector<TextRow>& rows, size_t first_number) {
  std::vector<size_t> width(rows.empty() ? 0 : rows.front().size(), 0);
  for (const auto& row : rows) {
    for (size_t c = 0; c < width.size(); ++c) {
      width[c] = std::max(width[c], row[c].size());
    }
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t c = 0; c < width.size(); ++c) {
      const std::string fill(width[c] - row[c].size(), ' ');
      line += c == 0 ? "" : "  ";
      line += c < first_number ? row[c] + fill : fill + row[c];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

} // namespace dtensor::detail
