// SPDX-License-Identifier: BSD-3-Clause
// Which pages of a mapped file a program touches, by the processor's own
// account: none may be read at first, and each that is looked at is noted and
// opened.
#pragma once

#include <cstddef>
#include <string>

namespace dtensor::test_weights {

/// Watches the mappings of the file at `path`, which are to be there, while it
/// lives. One at a time.
class TouchedPages {
 public:
  explicit TouchedPages(const std::string& path);
  ~TouchedPages();
  TouchedPages(const TouchedPages&) = delete;
  TouchedPages& operator=(const TouchedPages&) = delete;

  /// Of the pages that were touched so far, whole ones.
  size_t bytes() const;
};

/// Bytes of a page.
size_t page_size();

} // namespace dtensor::test_weights
