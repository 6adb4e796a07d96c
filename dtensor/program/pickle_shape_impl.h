// SPDX-License-Identifier: BSD-3-Clause
// The nesting of a pickle, which LibTorch's reader does not bound: lists within
// lists are freed by recursion, and a list that holds itself is never freed.
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
