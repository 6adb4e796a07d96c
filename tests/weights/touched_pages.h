// SPDX-License-Identifier: BSD-3-Clause
// Records the pages of a mapped file that a program touches. All pages are
// protected from reading at first. The handler of the page fault counts a page
// and makes it readable.
#pragma once

#include <cstddef>
#include <string>

namespace dtensor::test_weights {

/// Watches the existing mappings of the file at `path` while an instance lives.
/// Only one instance may live at a time.
class TouchedPages {
 public:
  explicit TouchedPages(const std::string& path);
  ~TouchedPages();
  TouchedPages(const TouchedPages&) = delete;
  TouchedPages& operator=(const TouchedPages&) = delete;

  /// Returns the bytes of all pages touched so far.
  size_t bytes() const;
};

/// Returns the bytes of a page.
size_t page_size();

} // namespace dtensor::test_weights
