// SPDX-License-Identifier: BSD-3-Clause
// Limits on the nesting of a pickle. LibTorch's reader has none, although
// nested lists are freed recursively and a list that contains itself is never
// freed.
#pragma once

#include <string>
#include <string_view>

namespace dtensor::detail {

/// Maximum nesting of lists, tuples and dictionaries in a pickle.
constexpr size_t kMaxPickleDepth = 100;
/// Maximum number of lists, tuples, dictionaries and tensors in a pickle.
constexpr size_t kMaxPickledObjects = 1000000;

/// Returns why a pickle is refused, or an empty text. A pickle is refused if it
/// nests deeper than kMaxPickleDepth, contains itself, or is not a pickle as
/// torch.save() writes it. Time and memory are proportional to the pickle's
/// size.
std::string pickle_problem(std::string_view pickle);

} // namespace dtensor::detail
