// SPDX-License-Identifier: BSD-3-Clause
// Reads all listed contents of a weight file.
#pragma once

#include <dtensor/weights/weight_contents_impl.h>
#include <dtensor/weights/weight_file.h>

#include <ATen/ops/empty.h>

#include <vector>

namespace dtensor::fuzz {

/// Reads every weight in a supported format, in full and in parts.
inline void read_all(const WeightFile& file) {
  for (const auto& weight : file.weights()) {
    if (file.contents().stored_as(weight).format == nullptr) {
      continue;
    }
    file.read(weight.name);
    std::vector<Intervals> parts;
    Sizes sizes;
    for (const auto size : weight.sizes) {
      parts.push_back({{size / 2, size}, {0, size / 3}});
      sizes.push_back(size - size / 2 + size / 3);
    }
    // Reads parts, converted to another dtype.
    if (!c10::isComplexType(weight.dtype)) {
      file.read(weight.name, parts, at::empty(sizes, at::kDouble));
    }
  }
}

} // namespace dtensor::fuzz
